"""An exception from a signal handler, between any two lines: files and memory agree, or the queue reports it.

Each line of this package at which a step can be interrupted is tried. The step may have happened or not. Nothing else
may have changed, neither in the files nor for a caller that continues with the same queue.
"""

import os
import sys
from collections.abc import Callable
from contextlib import closing
from itertools import count
from types import FrameType
from typing import Any

import pytest

import kestrel.fast
from kestrel import segmented
from kestrel.errors import FailedError, ShutError
from sej.system.disk import Disk
from tests.crash.disk import CrashDisk
from tests.kestrel.support import KINDS, values

COMPILED = kestrel.fast.Fuse.__module__ != "kestrel.fast.reference"
"""Whether the calls for each item are compiled, and so have no lines. ``make test`` runs these tests on both twins."""
PACKAGE = os.path.dirname(kestrel.__file__) + os.sep
Waiting = list[bytes]


class Interrupt(BaseException):
    """What a handler raises."""


class LateError(Exception):
    """What another handler raises: an ordinary error."""


def interrupted(
    step: Callable[[], object], line: int, kind: type[BaseException] = Interrupt, package: str = PACKAGE
) -> bool:
    """Run a step, with an exception at its line-th line; whether it got so far."""
    left = [line]

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(package):
            return None
        if event == "line":
            left[0] -= 1
            if not left[0]:
                raise kind
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        step()
    except kind:
        return True
    finally:
        sys.settrace(before)
    return False


def reserved(queue: kestrel.Queue) -> int:
    return next(iter(queue.open_transactions))


STEPS: dict[str, Callable[[kestrel.Queue], object]] = {
    "put": lambda queue: queue.put(b"new"),
    "put_many": lambda queue: queue.put_many([b"new", b"newer"]),
    "get": lambda queue: queue.get(),
    "reserve": lambda queue: queue.reserve(),
    "confirm": lambda queue: queue.confirm(reserved(queue)),
    "unreserve": lambda queue: queue.unreserve(reserved(queue)),
    "continue": lambda queue: queue.continue_(reserved(queue), b"next"),
    "flush": lambda queue: queue.flush(),
}


def in_files(disk: Disk) -> Waiting:
    return [item.data for item in kestrel.replay("/q", "cars", disk=disk).recovered]


def prepared(disk: Disk, options: dict[str, Any]) -> kestrel.Queue:
    queue = kestrel.Queue("/q", "cars", disk=disk, **options)
    for number in range(6):
        queue.put(b"%d" % number)
    queue.reserve()
    return queue


@pytest.mark.parametrize("options", [{}, {"max_memory_bytes": 400}, {"journal_bytes": 1, "max_journal_bytes": 1}])
@pytest.mark.parametrize("name", STEPS)
def test_an_interrupt_at_any_line_of_a_queue(name: str, options: dict[str, Any]) -> None:
    disk = CrashDisk()
    with prepared(disk, options) as queue:
        allowed = [in_files(disk)]
        STEPS[name](queue)
        allowed.append(in_files(disk))
    refused = 0
    for line in count(1):
        disk = CrashDisk()
        queue = prepared(disk, options)
        reached = interrupted(lambda queue=queue: STEPS[name](queue), line)  # type: ignore[misc]
        due, found, refusal = allowed, None, None
        try:
            queue.put(b"end")  # a caller that catches it may continue, if the queue permits
        except FailedError as error:
            refusal = error
        if refusal is None:
            due = [[*one, b"end"] for one in allowed]
            for xid in list(queue.open_transactions)[::-1]:
                queue.unreserve(xid)
            found = in_files(disk)
            assert values(queue) == found, line
        else:
            assert "interrupted" in refusal.reason
            refused += 1
        queue.close()
        if found is None:
            with kestrel.Queue("/q", "cars", disk=disk, **options) as queue:
                found = values(queue)
        assert found in due, (line, found, due)
        if not reached:
            break
    assert line > 5 or COMPILED
    assert refused or COMPILED


def end_first(q: Any) -> Waiting:
    """Take all, and end the first one for good."""
    taken = list(iter(q.take, None))
    assert q.end(taken[0][0])
    return [data for _, data in taken]


@pytest.mark.parametrize("error", [Interrupt, LateError])
@pytest.mark.parametrize("kind", KINDS)
def test_a_close_that_is_interrupted_is_finished_by_the_next_one(kind: Any, error: type[BaseException]) -> None:
    for line in count(1):
        disk = CrashDisk()
        q = kind.open("/q", disk=disk)
        q.put_many([b"a", b"b", b"c"])
        end_first(q)
        reached = interrupted(q.close, line, error)
        q.close()
        with closing(kind.open("/q", disk=disk)) as q:  # the lock is free
            assert end_first(q) == [b"b", b"c"]
        if not reached:
            break
    assert line > 5


READER_STEPS: dict[str, Callable[[segmented.Queue], object]] = {
    "put": lambda queue: queue.put(b"new"),
    "get": lambda queue: queue.reader().get(),
    "commit": lambda queue: queue.reader().commit(1),
    "unget": lambda queue: queue.reader().unget(1),
    "flush": lambda queue: queue.reader().flush(),
    "checkpoint": lambda queue: queue.checkpoint(),
}
KEPT = {"commit": {1}, "flush": {2, 3, 4, 5, 6}}
"""What need not come again after these."""


@pytest.mark.parametrize("journal_bytes", [1 << 20, 120])
@pytest.mark.parametrize("name", READER_STEPS)
def test_an_interrupt_at_any_line_of_a_segmented_queue(name: str, journal_bytes: int) -> None:
    for line in count(1):
        disk = CrashDisk()
        queue = segmented.Queue("/q", "jobs", journal_bytes=journal_bytes, disk=disk)
        for number in range(6):
            queue.put(b"%d" % number)
        first = queue.reader().get()
        assert first is not None
        reached = interrupted(lambda queue=queue: READER_STEPS[name](queue), line)  # type: ignore[misc]
        seen = {first.id: first.data}
        try:
            queue.put(b"end")
            reader = queue.reader()
            while (item := reader.get()) is not None:
                assert seen.setdefault(item.id, item.data) == item.data
                if item.id != first.id:
                    assert reader.commit(item)
        except (FailedError, ShutError):
            pass
        queue.close()
        with segmented.Queue("/q", "jobs", journal_bytes=journal_bytes, disk=disk) as again:
            reader = again.reader()
            while (item := reader.get()) is not None:
                assert seen.setdefault(item.id, item.data) == item.data
        missing = {*range(1, 7)} - set(seen)
        assert missing <= KEPT.get(name, set()), (line, missing)
        assert len(set(seen.values())) == len(seen), (line, seen)
        if not reached:
            break
    assert line > 5 or COMPILED
