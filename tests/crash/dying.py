"""A disk that may kill its process just before any call, or in the middle of a write."""

import os
import random
import signal

from sej.system.disk import File
from tests.sej.hooks import HookedDisk


def dying(dice: random.Random, odds: float = 1.0) -> HookedDisk:
    """Return a disk that kills its process between calls far more often than a kill at a random moment would."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if dice.random() < odds * (0.002 if verb == "write" else 0.02):
            # Bytes that go to a position are not split: written by write(), they would land at the file's beginning.
            if verb == "write" and file is not None and data and dice.random() < 0.5:
                file.write(data[: dice.randrange(len(data))])
            os.kill(os.getpid(), signal.SIGKILL)

    return HookedDisk(hook)
