"""Small JSON files that decisions depend on: one line that begins with a checksum. The one intent log of all packages.

An operation of several steps that must happen completely or not at all decides, acts and forgets::

    intent = SealedFile(disk, path, "an intent of a split", "compare the files, then remove it")
    found = intent.load()       # None: nothing is under way. Otherwise an earlier run died: its steps are done again
    intent.store({...})         # decide: synced and renamed into place. From here on a crash cannot undo it
    ...                         # act: each step may be repeated
    intent.remove()             # forget

The next process that opens the files takes the steps of an intent that it finds, before anything else. What was done
stays in another such file if a repeat has to be recognised: ``append_once`` keeps the numbers of its batches, a commit
of a Spark job the number of the last job, a reshard its plan. The file::

    1234abcd {"start":28,"stop":33,"reason":"no message","kept":null}

The eight hexadecimal digits are the CRC32C of the file's name (without its directory) and the JSON text after the
space. With the name in it, a file that was swapped with another one of its kind is noticed too.

Every package may import it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sej.errors import CorruptionError, SejError
from sej.system.checksum import crc32c
from sej.system.disk import Disk, read_small, replace_file


class SealedFile:
    """A small JSON file with a checksum that is replaced as a whole.

    Attributes:
        path: the file.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        what: str,
        way_out: str,
        *,
        temporary: str | None = None,
        max_bytes: int = 1 << 20,
        error: type[SejError] = CorruptionError,
    ) -> None:
        """Name the file; nothing is read.

        Args:
            disk: the disk.
            path: the file.
            what: what it should be, for the error: ``"a readable gap"``.
            way_out: what to do if it is damaged, for the error.
            temporary: the path of a new file before its rename; None: the path with ``.tmp``.
            max_bytes: no file of this kind is larger.
            error: is raised if the file is damaged.
        """
        self.path = path
        self._disk = disk
        self._what = what
        self._way_out = way_out
        self._temporary = temporary or f"{path}.tmp"
        self._max_bytes = max_bytes
        self._error = error

    def load(self) -> dict[str, Any] | None:
        """Return the content; None if there is no such file.

        Raises:
            SejError: it is damaged; a CorruptionError, or the error given.
        """
        try:
            data = read_small(self._disk, self.path, self._max_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with self.checking():
            return unseal(self.path, data)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Report members that are missing or have wrong values as damage of the file."""
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._error(f"this file is not {self._what} ({error}); {self._way_out}", path=self.path) from error

    def store(self, content: dict[str, Any]) -> None:
        """Replace the content, durably."""
        replace_file(self._disk, self._temporary, self.path, seal(self.path, content))

    def remove(self) -> None:
        """Remove the file if it exists."""
        self._disk.unlink(self.path)


def seal(path: str | os.PathLike[str], content: Any) -> bytes:
    r"""Return the bytes of a file that will be at path.

    Example:
        >>> seal("gaps/7.gap", {"start": 7})
        b'4172aaa8 {"start":7}\n'
    """
    import json  # here, because a writer opens most journals without it

    body = json.dumps(content, separators=(",", ":")).encode()
    return b"%08x %s\n" % (_check(path, body), body)


def unseal(path: str | os.PathLike[str], data: bytes) -> dict[str, Any]:
    """Return the object in the bytes of the file at path. Of the path, only the name of the file counts.

    Raises:
        ValueError: the checksum is wrong, or the bytes are not such an object.
    """
    import json

    check, _, body = data.rstrip(b"\n").partition(b" ")
    wanted = b"%08x" % _check(path, body)
    if check != wanted:
        raise ValueError(f"its checksum is {check[:8]!r}, expected {wanted!r}")
    try:
        content = json.loads(body)
    except RecursionError:
        raise ValueError("its objects are nested too deep") from None
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, got {type(content).__name__}")
    return content


def whole(value: Any, low: int = 0, high: int = 2**63 - 1) -> int:
    """Return the value if it is an integer from low to high.

    Raises:
        ValueError: it is not.
    """
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"expected an integer from {low} to {high}, got {str(value)[:40]}")
    return value


def _check(path: str | os.PathLike[str], body: bytes) -> int:
    return crc32c(body, crc32c(os.path.basename(os.fspath(path)).encode("utf-8", "surrogateescape") + b"\0"))
