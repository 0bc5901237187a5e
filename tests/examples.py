"""How many examples hypothesis tries in a test that sets the number itself."""

import os
from typing import Final

REFERENCE: Final = os.environ.get("SEJ_CODEC") == "python"
"""Whether this is the pass of `make test` on the reference codec."""


def examples(count: int) -> int:
    """Return count, or a quarter of it on the reference codec.

    What a long history finds, it finds in the code above the codec, which is the same in both passes. A fault of the
    codec is found by the first examples.
    """
    return count // 4 if REFERENCE else count
