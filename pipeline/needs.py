"""What a process lacks: a library of an extra, the compiled codec, or the JVM of a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needed(extra: str) -> Iterator[None]:
    """Add the extra's name to the error if the block cannot import its library."""
    try:
        yield
    except ModuleNotFoundError as error:
        error.add_note(f"pipeline needs the extra `{extra}`: pip install 'sej-journals[{extra}]'")
        raise


def why_not_compiled() -> str | None:
    """Return why the codec of this process is pure Python; None if it is compiled, or chosen by ``SEJ_CODEC``."""
    import importlib

    import sej
    from sej import codec

    if codec.IMPLEMENTATION == "c" or os.environ.get("SEJ_CODEC") == "python":
        return None
    try:
        importlib.import_module("sej.codec._codec_c")
    except ImportError as error:
        home = os.path.dirname(os.path.dirname(str(sej.__file__)))
        zipped = " (a zip file, as of --py-files, cannot hold compiled modules)" if os.path.isfile(home) else ""
        return f"{error}; sej was imported from {home}{zipped}"
    return None


def is_connect(spark: object) -> bool:
    """Return whether a session is one of Spark Connect, whose process has no JVM and no ``sparkContext``."""
    return getattr(spark, "sparkContext", None) is None
