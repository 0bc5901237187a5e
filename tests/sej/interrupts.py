"""Raising where a signal's handler can: after each call and each jump back, one place after the other.

The interpreter runs the handlers of signals where a function begins, after a call, and where a loop jumps back. A trace
function sees each bytecode before it runs, so it raises before the one that follows such a place. Where the two are
covered by different handlers of exceptions, the place is left to the profile function, which sees calls of C functions
return within the call.
"""

import dis
import fcntl
import gc
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

from sej.system.checksum import crc32c

crc32c(bytes(1000))  # it may import a library at its first use: an interrupt within the import system is not the point
__all__ = ["KINDS", "Interrupt", "free", "interrupt", "locked_below", "open_below", "places", "swallowed"]

_CHECKING = {number for name, number in dis.opmap.items() if name.startswith(("CALL", "JUMP_BACKWARD", "RESUME"))}
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_tables: dict[CodeType, dict[int, object]] = {}


class Interrupt(BaseException):
    """What a handler raises."""


class AlarmError(Exception):
    """What another handler raises."""


KINDS: list[type[BaseException]] = [Interrupt, AlarmError, TimeoutError]
"""A handler raises what it likes. TimeoutError is an OSError, and no failure of a disk."""


class _Tracer:
    """Raises at the place-th place."""

    def __init__(self, place: int, kind: type[BaseException]) -> None:
        self.left = place
        self.kind = kind
        self.last: dict[FrameType, int] = {}

    def reach(self) -> None:
        self.left -= 1
        if not self.left:
            sys.settrace(None)
            sys.setprofile(None)
            raise self.kind

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename.startswith(_HERE) or not self.left:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            last, here = self.last.get(frame, -1), frame.f_lasti
            self.last[frame] = here
            code = frame.f_code
            if last >= 0 and code.co_code[last] in _CHECKING:
                handlers = _handlers(code)
                if handlers.get(last) == handlers.get(here):
                    self.reach()
        elif event == "return":
            self.last.pop(frame, None)
        return self.trace

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "c_return" and not frame.f_code.co_filename.startswith(_HERE) and self.left:
            handlers = _handlers(frame.f_code)
            last = frame.f_lasti
            if handlers.get(last) != handlers.get(_next(frame.f_code, last)):
                self.reach()


def _handlers(code: CodeType) -> dict[int, object]:
    """For each instruction that is covered by a handler of exceptions: by which."""
    if code not in _tables:
        parse = dis._parse_exception_table  # type: ignore[attr-defined]
        _tables[code] = {
            at: (entry.target, entry.depth) for entry in parse(code) for at in range(entry.start, entry.end, 2)
        }
    return _tables[code]


@cache
def _next(code: CodeType, last: int) -> int:
    return next((step.offset for step in dis.get_instructions(code) if step.offset > last), last)


def interrupt(step: Callable[[], object], place: int, kind: type[BaseException]) -> tuple[bool, BaseException | None]:
    """Run a step and raise at its place-th place; whether it got so far, and what came out, with its traceback.

    The garbage collector is off meanwhile: it calls functions of other libraries, and swallows what they raise.
    """
    tracer = _Tracer(place, kind)
    error: BaseException | None = None
    collecting = gc.isenabled()
    gc.disable()
    sys.settrace(tracer.trace)
    sys.setprofile(tracer.profile)
    try:
        step()
    except BaseException as raised:
        error = raised
    finally:
        sys.settrace(None)
        sys.setprofile(None)
        if collecting:
            gc.enable()
    return not tracer.left, error


def swallowed(kind: type[BaseException], error: BaseException | None) -> bool:
    """Whether the standard library swallowed what a handler raised: ``os.path.realpath`` ignores every OSError."""
    return error is None and issubclass(kind, OSError)


def places(first: int = 1, step: int = 1) -> Iterator[tuple[int, type[BaseException]]]:
    """One place after the other, and what is raised there."""
    place = first
    while True:
        yield place, KINDS[place // step % len(KINDS)]
        place += step


def free(path: str | os.PathLike[str]) -> bool:
    """Whether a lock is free."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def locked_below(path: str | os.PathLike[str]) -> list[str]:
    """The files below a directory that are locked."""
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sorted(os.path.relpath(file, path) for file in files if not free(file))


def open_below(path: str | os.PathLike[str]) -> list[str]:
    """The files below a directory that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        if name.startswith(os.fspath(path)):
            found.append(os.path.relpath(name, path))
    return sorted(found)
