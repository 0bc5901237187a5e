"""A process that has one system open and does what it reads on its input; one line in, one line of JSON out.

Its arguments: the system, ``small`` or ``large`` files, its path, the file for marks. The commands, with what they mean
in :mod:`systems`:

``open`` and ``weak``, ``found``, ``act NUMBER``, ``poison NUMBER``, ``again``, ``close``, ``sync`` (of every file below
the path, as another program may), ``evict`` (the page cache of these files), ``loop NUMBER`` (acts until it is killed).
The answer is ``null``, or the error. An error that no disk explains ends the process.
"""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.crash.rig.machine import tell
from tests.crash.rig.systems import FAILURES, SYSTEMS, System

_NEED_OPEN: Final = ("act", "poison", "again", "found", "close", "loop")


def files(path: Path) -> Iterator[int]:
    """A descriptor of each file and directory at and below path, one at a time."""
    for name in [path, *path.rglob("*")]:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def sync(path: Path) -> None:
    """Sync every file; the first error when all were tried."""
    errors = []
    for descriptor in files(path):
        try:
            os.fsync(descriptor)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def evict(path: Path) -> None:
    """Let the kernel forget the clean pages, as it does when memory is short."""
    for descriptor in files(path):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def do(system: System, word: str, number: int) -> None:
    match word:
        case "open" | "weak":
            system.weak = word == "weak"
            system.open()
        case "act":
            system.act(number)
        case "poison":
            system.act(number, poison=True)
        case "sync":
            sync(system.path)
        case "evict":
            evict(system.path)
        case "loop":
            for each in itertools.count(number):
                system.act(each)
                print("null", flush=True)
        case "found" | "again" | "close":
            getattr(system, word)()
        case _:
            raise ValueError(word)


def main() -> None:
    name, size, path, marks = sys.argv[1:]
    is_open = False
    system = SYSTEMS[name](Path(path), lambda word, **about: tell(Path(marks), word, **about), small=size == "small")
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if not is_open and word in _NEED_OPEN:
            print(json.dumps("it is not open"), flush=True)
            continue
        try:
            do(system, word, int(number or 0))
            is_open = word in ("open", "weak") or (is_open and word != "close")
        except FAILURES as error:
            is_open = is_open and word not in ("open", "weak", "close")
            print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
        else:
            print("null", flush=True)
    os._exit(0)  # the test has ended: nothing is closed properly


if __name__ == "__main__":
    main()
