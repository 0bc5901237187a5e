"""``textqueue.check``: what a person may have typed by mistake, each with its place and a way to mend it.

Nothing here is fatal to the queue, which keeps and skips what it does not understand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from sej.checks import DISK, PATH, require
from sej.system.disk import OS, Disk
from textqueue.format.grammar import BOM, CONTROLS, MUTEX, RETRIES, MessageStatus
from textqueue.format.mutex import ROOM, is_alive, mutex_of
from textqueue.format.parser import Entry, NeedMore, Stray, decode, name_of, parse, retries_of, variables_of
from textqueue.format.windows import scan
from textqueue.reading.files import is_special

__all__ = ["Problem", "check"]


class Problem(NamedTuple):
    """Something odd in a queue file.

    Attributes:
        path: the file.
        line: from 1.
        column: from 1, in characters.
        what: what is odd, and what the queue makes of it.
        mend: how to mend it.
        position: the byte in the file.
    """

    path: str
    line: int
    column: int
    what: str
    mend: str
    position: int

    def __str__(self) -> str:
        """As compilers print it, so that editors can jump there."""
        return f"{self.path}:{self.line}:{self.column}: {self.what}; {self.mend}"


class _Odd(NamedTuple):
    at: int  # counted from the start of the part
    what: str
    mend: str


def check(path: str | os.PathLike[str], *, disk: Disk = OS) -> list[Problem]:
    """Look through a queue file.

    Args:
        path: the file.
        disk: the seam.

    Returns:
        What is odd, in the order of the file; nothing when all is well.

    Raises:
        FileNotFoundError: there is none.
    """
    require(path=(path, PATH), disk=(disk, DISK))
    name = os.fspath(path)
    if is_special(name):
        what = "this is a pipe, a socket or a device, which a queue of a directory passes over"
        return [Problem(name, 1, 1, what, "move it out of the queue, or give it another name", 0)]
    file = disk.open(name, "read")
    found: list[Problem] = []
    line = 1
    try:
        for window in scan(file):
            if window.position == len(BOM) and file.read(len(BOM), 0) == BOM:
                found.append(
                    Problem(name, 1, 1, "the file begins with a byte order mark", "save it as UTF-8 without BOM", 0)
                )
            for part in parse(window.data, start=False):
                if isinstance(part, NeedMore):
                    continue
                odd = _entry(part) if isinstance(part, Entry) else _stray(part)
                for at, what, mend in odd:
                    before = part.raw[:at]
                    start = before.rfind(b"\n") + 1
                    found.append(
                        Problem(
                            name,
                            line + before.count(b"\n"),
                            len(decode(before[start:])) + 1,
                            what,
                            mend,
                            window.position + part.position + at,
                        )
                    )
                line += part.raw.count(b"\n")
            if window.at_end and window.data and not window.data.endswith(b"\n"):
                last = window.data[window.data.rfind(b"\n") + 1 :]
                what = "the last line has no end, so it counts only once the file has been quiet"
                end = window.position + len(window.data)
                found.append(Problem(name, line, len(decode(last)) + 1, what, "end it with a newline", end))
    finally:
        file.close()
    return found


def _stray(part: Stray) -> Iterator[_Odd]:
    known = " ".join(repr(chr(control.byte)) for control in CONTROLS)
    if part.kind == "continuation of nothing":
        mend = "put it right below a message's text, or begin it with '-' or '#'"
        yield _Odd(0, "this line continues nothing, so it is skipped", mend)
    elif part.kind == "variable of nothing":
        yield _Odd(0, "this variable belongs to nothing, so it is skipped", "put it right below its message")
    elif part.kind == "unknown control character":
        first = decode(part.raw)[0]
        yield _Odd(0, f"a line cannot begin with {first!r}, so it is skipped", f"begin it with one of {known}")


def _entry(part: Entry) -> Iterator[_Odd]:
    try:
        part.raw.decode("utf-8")
    except UnicodeDecodeError as error:
        what = f"byte 0x{part.raw[error.start]:02x} is no UTF-8; it is kept as it is"
        yield _Odd(error.start, what, "save the file as UTF-8")
    if part.status is MessageStatus.comment:
        return
    names: set[str] = set()
    for position, data in variables_of(part.raw):
        name = name_of(data)
        if name is None or b"=" not in data:
            continue
        if name in names:
            yield _Odd(position, f"a second variable {name!r}; only the first is used", "rename or remove it")
        names.add(name)
        text = decode(data.partition(b"=")[2]).strip()
        if name == RETRIES and retries_of(b"\n\\" + data) is None:
            yield _Odd(
                position, f"retries is {text[:40]!r} and no number, so it is not counted down", "write retries=3"
            )
    mutex = mutex_of(part.raw)
    if mutex is None or part.status is not MessageStatus.queued:
        return
    if len(mutex.data) < ROOM:
        room = f"{MUTEX}= has room for {len(mutex.data)} bytes, a claim takes {ROOM}: it is kept beside the file"
        yield _Odd(mutex.position, room, f"add spaces behind {MUTEX}= until there are {ROOM}")
    if mutex.holder and not is_alive(mutex.holder):
        gone = f"{decode(mutex.holder)} claimed this message and has ended; the next worker takes it over"
        yield _Odd(mutex.position, gone, f"nothing to do, or write spaces over what stands behind {MUTEX}=")
