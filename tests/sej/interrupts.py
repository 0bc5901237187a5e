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
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any

from sej.system.checksum import crc32c

crc32c(bytes(1000))  # it may import a library at its first use: an interrupt within the import system is not the point
_CHECKING = {
    number
    for name, number in dis.opmap.items()
    if name.startswith(("CALL", "JUMP_BACKWARD", "RESUME")) and not name.startswith("CALL_INTRINSIC")
}
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_tables: dict[CodeType, dict[int, object]] = {}


class Interrupt(BaseException):
    """What a handler raises."""


class AlarmError(Exception):
    """What another handler raises."""


KINDS: list[type[BaseException]] = [Interrupt, AlarmError, TimeoutError]
"""A handler raises what it likes. TimeoutError is an OSError, and no failure of a disk."""


class _Tracer:
    """Raises at the place-th place that the thread reaches which has entered it."""

    def __init__(self, place: int, kind: Callable[[], BaseException | None]) -> None:
        self.left = place
        self.kind = kind
        self.last: dict[FrameType, int] = {}

    def __enter__(self) -> None:
        sys.settrace(self.trace)
        sys.setprofile(self.profile)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        sys.setprofile(None)

    def reach(self) -> None:
        self.left -= 1
        if not self.left:
            self.__exit__()
            error = self.kind()
            if isinstance(error, OSError) and _is_in_realpath(sys._getframe()):
                self.left = 1  # it would swallow every OSError: the next place
                self.__enter__()
            elif error is not None:
                raise error

    def step(self, frame: FrameType, here: int) -> None:
        """Note that a frame goes to an instruction."""
        last = self.last.get(frame, -1)
        self.last[frame] = here
        code = frame.f_code
        if last >= 0 and code.co_code[last] in _CHECKING:
            handlers = _handlers(code)
            if handlers.get(last) == handlers.get(here):
                self.reach()

    def called(self, code: CodeType, last: int) -> None:
        """Note that a C function returns to the instruction that called it."""
        handlers = _handlers(code)
        if handlers.get(last) != handlers.get(_next(code, last)):
            self.reach()

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename.startswith(_HERE) or not self.left:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            self.step(frame, frame.f_lasti)
        elif event == "return":
            self.last.pop(frame, None)
        return self.trace

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "c_return" and not frame.f_code.co_filename.startswith(_HERE) and self.left:
            self.called(frame.f_code, frame.f_lasti)


_Tool: type[_Tracer] = _Tracer
if sys.version_info >= (3, 12):

    class _Monitor(_Tracer):
        """The same by ``sys.monitoring``: from Python 3.12 on, a trace function misses bytecodes of what it calls."""

        tool = 4

        def __enter__(self) -> None:
            self.thread = threading.get_ident()
            events = sys.monitoring.events
            self.calls: dict[int, Callable[..., None]] = {
                events.INSTRUCTION: self.instruction,
                events.C_RETURN: self.c_return,
                **dict.fromkeys((events.PY_RETURN, events.PY_YIELD, events.PY_UNWIND), self.leave),
            }
            sys.monitoring.use_tool_id(self.tool, __name__)
            for event, call in self.calls.items():
                sys.monitoring.register_callback(self.tool, event, call)
            # The return of a C function comes with its call.
            sys.monitoring.set_events(self.tool, sum(self.calls) - events.C_RETURN + events.CALL)

        def __exit__(self, *_: object) -> None:
            if sys.monitoring.get_tool(self.tool) is None:
                return
            sys.monitoring.set_events(self.tool, 0)
            for event in self.calls:
                sys.monitoring.register_callback(self.tool, event, None)
            sys.monitoring.free_tool_id(self.tool)
            self.last.clear()  # a frame keeps what it has open

        def seen(self, code: CodeType) -> bool:
            return threading.get_ident() == self.thread and not code.co_filename.startswith(_HERE) and self.left != 0

        def instruction(self, code: CodeType, offset: int) -> None:
            if self.seen(code):
                self.step(sys._getframe(1), offset)

        def c_return(self, code: CodeType, offset: int, *_: object) -> None:
            if self.seen(code):
                self.called(code, offset)

        def leave(self, *_: object) -> None:
            self.last.pop(sys._getframe(1), None)

    _Tool = _Monitor


def _is_in_realpath(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is os.path.realpath.__code__:
            return True
        frame = frame.f_back
    return False


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


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector off: it calls functions of other objects, and swallows what they raise."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def interrupt(
    step: Callable[[], object], place: int, kind: Callable[[], BaseException | None]
) -> tuple[bool, BaseException | None]:
    """Run a step and raise at its place-th place; whether it got so far, and what came out, with its traceback.

    A kind that is a function handles the signal, and may return None.
    """
    tracer = _Tool(place, kind)
    error: BaseException | None = None
    with uncollected():
        try:
            with tracer:
                step()
        except BaseException as raised:
            error = raised
    return not tracer.left, error


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


def descriptors_below(path: str | os.PathLike[str]) -> dict[int, str]:
    """The descriptors of this process, and the names of what they are of, that begin with a path."""
    found = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(FileNotFoundError):  # of the list itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return {number: name for number, name in found.items() if name.startswith(os.fspath(path))}


def open_below(path: str | os.PathLike[str]) -> list[str]:
    """The files below a directory that this process has open."""
    return sorted(os.path.relpath(name, path) for name in descriptors_below(path).values())
