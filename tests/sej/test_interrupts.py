"""An exception that a signal handler raises, at each place of a call where the interpreter runs handlers.

Afterwards the object is usable. The messages of the interrupted call are in the journal or not, in order and once. No
lock is held without an owner.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.codec import Buffer, buffer_reference
from sej.system.disk import File
from tests.queue.test_interrupts import QuickDisk
from tests.sej.hooks import HookedDisk, Worker
from tests.sej.interrupts import Interrupt, descriptors_below, interrupt, locked_below, open_below, places
from tests.sej.support import read_all, values, write

pytestmark = pytest.mark.both_codecs


@pytest.fixture(params=["chosen", "python"], autouse=True)
def buffer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sej.writing.appender.Buffer", Buffer if request.param == "chosen" else buffer_reference.Buffer)


def then(_: object, act: Callable[[], object]) -> None:
    act()


def fork_and_raise(path: Path, copies: list[int], kind: type[BaseException]) -> BaseException:
    """Handle a signal while another thread forks."""
    copies += map(os.dup, descriptors_below(path))  # as a child has that was just forked
    return kind()


Step = Callable[[sej.Writer, int], object]
STEPS: dict[str, tuple[Step, int, dict[str, Any]]] = {
    "append": (lambda w, n: w.append(b"%d" % n), 1, {}),
    "append to a buffer": (lambda w, n: w.append(b"%d" % n * 30000), 1, {"durability": "buffer"}),
    "append to a disk": (lambda w, n: w.append(b"%d" % n), 1, {"durability": "disk"}),
    "append and rotate": (lambda w, n: w.append(b"%d" % n), 11, {"segment_bytes": 20}),
    "append a block": (lambda w, n: w.append(b"%d" % n + b"x" * 300000), 2, {}),
    "append many": (lambda w, n: w.append_many([b"%d" % n, b"%d'" % n]), 1, {}),
    "append encoded": (lambda w, n: w.end.append_encoded(sej.codec.encode(w.offset, 1, 0, b"", b"%d" % n)), 1, {}),
    "append once": (lambda w, n: w.append_once("n", n, [b"%d" % n]), 29, {}),
    "rotate": (lambda w, n: then(w.append(b"%d" % n), w.end.rotate), 11, {}),
    "sync": (lambda w, n: then(w.append(b"%d" % n), w.sync), 1, {}),
    "flush": (lambda w, n: then(w.append(b"%d" % n), w.flush), 1, {"durability": "buffer"}),
}


def interrupt_all(path: Path, name: str, every: int, until_s: float = float("inf")) -> int:
    """Interrupt one call after the other of a writer, each one place later; how many places there are."""
    step, _, options = STEPS[name]
    step_once = sej.Writer(path / "warm", disk=QuickDisk(), **options)
    step(step_once, 0)
    step_once.close()
    path = path / "journal"
    w = sej.Writer(path, disk=QuickDisk(), **options)
    known: dict[int, bytes] = {}
    error: BaseException | None = None
    for place, kind in places(1, every):
        copies: list[int] = []
        handler = partial(fork_and_raise, path, copies, kind)
        reached, error = interrupt(lambda: step(w, place), place, handler)  # noqa: B023
        if reached:
            assert type(error) is kind, f"place {place}: {error!r}"
        else:
            assert error is None
        told = b"after %d" % place
        known[Worker(lambda: w.append(told)).result()] = told  # type: ignore[index]  # noqa: B023
        for number in copies:
            os.close(number)
        if not reached or time.monotonic() > until_s:
            break
    w.close()
    error = None  # a sealed segment may be open, and locked, in its traceback
    assert locked_below(path) == []
    assert not [name for name in open_below(path) if name.startswith("jnl.lck")]
    read = read_all(path)
    assert [message.offset for message in read] == list(range(len(read)))
    assert {offset: read[offset].value for offset in known} == known
    steps = [value[:9] for value in values(read) if not value.startswith(b"after")]
    once = [value for value in steps if len(value) < 9]
    assert len(once) == len(set(once))
    assert sej.Journal(path).verify() == []
    return place


@pytest.mark.parametrize("name", STEPS)
def test_a_writer_continues_after_an_exception(tmp_path: Path, name: str) -> None:
    assert interrupt_all(tmp_path, name, STEPS[name][1]) >= 1


@pytest.mark.torture
@pytest.mark.parametrize("name", STEPS)
def test_a_writer_continues_after_an_exception_at_any_place(tmp_path: Path, brief_s: float, name: str) -> None:
    interrupt_all(tmp_path, name, 1, time.monotonic() + brief_s)


@pytest.mark.parametrize("durability", ["os", "buffer"])
def test_a_close_that_is_interrupted_is_finished_by_the_next_one(tmp_path: Path, durability: Any) -> None:
    for place, kind in places(1, 13):
        path = tmp_path / str(place)
        w = sej.Writer(path, durability=durability, disk=QuickDisk())
        w.append(b"a")
        reached, error = interrupt(w.close, place, kind)
        assert reached == (error is not None) and (error is None or type(error) is kind), (place, error)
        w.close()
        assert locked_below(path) == [], place
        assert values(read_all(path)) == [b"a"]
        with pytest.raises(sej.ClosedError):
            w.append(b"b")
        if not reached:
            break
    assert place > 50


def test_an_opening_that_is_interrupted_leaves_no_lock(tmp_path: Path) -> None:
    sej.Writer(tmp_path / "warm", disk=QuickDisk()).close()
    opened: list[sej.Writer] = []
    for place, kind in places(1, 31):
        path = tmp_path / str(place % 5)
        reached, error = interrupt(lambda: opened.append(sej.Writer(path, disk=QuickDisk())), place, kind)  # noqa: B023
        for w in opened:
            w.close()
        opened.clear()
        if reached:
            assert type(error) is kind, (place, error)
            assert not path.exists() or locked_below(path) == [], place
        elif error is None:
            break
        write(path, [b"a"], disk=QuickDisk())
    assert place > 100


def close(o: sej.Offset, _: int) -> None:
    o.close()


@pytest.mark.parametrize("name", ["commit", "reset", "open", "close"])
def test_a_kept_offset_is_old_or_new_and_its_lock_is_free(tmp_path: Path, name: str) -> None:
    write(tmp_path, [b"a"] * 1000, disk=QuickDisk())
    sej.Offset(tmp_path, "reader", disk=QuickDisk()).close()
    opened: list[sej.Offset] = []
    for place, kind in places(1, 9 if name in ("open", "reset") else 3):
        if name == "open":
            reached, error = interrupt(lambda: opened.append(sej.Offset(tmp_path, "reader")), place, kind)
            for o in opened:
                o.close()
            opened.clear()
        else:
            o = sej.Offset(tmp_path, "reader", disk=QuickDisk())
            before = o.value
            acts: dict[str, Callable[[int], object]] = {
                "commit": o.commit,
                "reset": o.reset,
                "close": partial(close, o),
            }
            act = acts[name]
            reached, error = interrupt(partial(act, place), place, kind)
            assert locked_below(tmp_path) in (["ofs/reader.lck"], [] if name == "close" else None), place
            if name != "close":
                o.commit(place + 1)
                assert before <= o.value == place + 1 == sej.read_offset(tmp_path, "reader")
            o.close()
        if reached:
            assert type(error) is kind, (place, error)
        assert locked_below(tmp_path) == [], place
        if not reached:
            break
    assert place >= 10


def test_a_consumer_continues_where_it_was_interrupted(tmp_path: Path) -> None:
    write(tmp_path, [b"%d" % n for n in range(2000)], disk=QuickDisk())
    seen: list[int] = []

    def consume() -> None:
        sej.Consumer(tmp_path, "c", timeout=0.0, commit_messages=1, disk=QuickDisk()).run(
            lambda message: seen.append(message.offset) if len(seen) < limit else consumer_stops()
        )

    def consumer_stops() -> None:
        raise Interrupt

    limit = 1
    with pytest.raises(Interrupt):
        consume()
    for place, kind in places(1, 197):
        limit = len(seen) + 2
        reached, error = interrupt(consume, place, kind)
        assert error is not None
        assert locked_below(tmp_path) == [], place
        kept = sej.read_offset(tmp_path, "c")
        assert kept is not None and set(range(kept)) <= set(seen), place
        if not reached:
            break
    assert place > 100


# --- a handler, or another thread, that uses or closes a writer in the middle of a call of it


class Signalling(HookedDisk):
    """Sends this process a signal, once, at a call of a verb."""

    def __init__(self) -> None:
        super().__init__(self.send)
        self.at = ""

    def send(self, verb: str, file: File | None, data: bytes) -> None:
        if verb == self.at:
            self.at = ""
            signal.raise_signal(signal.SIGUSR1)


@pytest.fixture
def handle() -> Iterator[Callable[[Callable[[], object]], list[object]]]:
    """Install a handler; what it returned or raised comes into a list."""
    before = signal.getsignal(signal.SIGUSR1)

    def install(work: Callable[[], object]) -> list[object]:
        found: list[object] = []

        def handler(*_: object) -> None:
            try:
                found.append(work())
            except sej.SejError as error:
                found.append(type(error))

        signal.signal(signal.SIGUSR1, handler)
        return found

    yield install
    signal.signal(signal.SIGUSR1, before)


INSIDE: dict[str, Callable[[sej.Writer], object]] = {
    "append": lambda w: w.append(b"handler"),
    "append_many": lambda w: w.append_many([b"handler"]),
    "append_once": lambda w: w.append_once("n", 1, [b"handler"]),
    "rotate": lambda w: w.end.rotate(),
    "flush": lambda w: w.flush(),
    "sync": lambda w: w.sync(),
    "close": lambda w: w.close(),
    "last_batch": lambda w: w.end.last_batch("n"),
}
OUTSIDE: dict[str, Callable[[sej.Writer], object]] = {
    "append": lambda w: w.append(b"x" * 70000),
    "append_many": lambda w: w.append_many([b"x" * 70000]),
    "append_once": lambda w: w.append_once("m", 1, [b"x"]),
}


@pytest.mark.parametrize("call", INSIDE)
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("durability", ["buffer", "os", "disk"])
def test_in_the_middle_of_a_write_a_handler_is_refused(
    call: str, outside: str, durability: Any, tmp_path: Path, handle: Any
) -> None:
    disk = Signalling()
    with sej.Writer(tmp_path, durability=durability, disk=disk) as w:
        w.append(b"before")
        w.flush()
        found = handle(lambda: INSIDE[call](w))
        disk.at = "write" if outside.startswith("append") and outside != "append_once" else "rename"
        OUTSIDE[outside](w)
        assert found == [sej.LockedError]
        w.append(b"after")
    read = read_all(tmp_path)
    assert [message.offset for message in read] == [0, 1, 2]
    assert read[0].value == b"before" and read[1].value[:1] == b"x" and read[2].value == b"after"


def test_while_the_disk_syncs_a_handler_may_append_and_sync(tmp_path: Path, handle: Any) -> None:
    disk = Signalling()
    with sej.Writer(tmp_path, durability="disk", disk=disk) as w:
        found = handle(lambda: (w.append(b"handler"), w.durable_offset))
        disk.at = "sync"
        assert w.append(b"main") == 0
        assert found == [(1, 2)]
        assert w.append(b"again") == 2 and w.durable_offset == 3
    assert values(read_all(tmp_path)) == [b"main", b"handler", b"again"]


def test_while_a_writer_closes_a_handler_is_refused(tmp_path: Path, handle: Any) -> None:
    disk = Signalling()
    w = sej.Writer(tmp_path, disk=disk)
    w.append(b"a")
    found = handle(w.close)
    disk.at = "sync"
    w.close()
    assert found == [sej.LockedError] and w.closed


def test_a_handler_that_closes_between_two_calls_closes(tmp_path: Path, handle: Any) -> None:
    w = sej.Writer(tmp_path)
    w.append(b"a")
    found = handle(w.close)
    signal.raise_signal(signal.SIGUSR1)
    assert found == [None] and w.closed
    with pytest.raises(sej.ClosedError):
        w.append(b"after")
    assert values(read_all(tmp_path)) == [b"a"]


def test_in_the_middle_of_a_shared_write_a_handler_cannot_close(tmp_path: Path, handle: Any) -> None:
    disk = Signalling()
    with sej.SharedWriter(tmp_path, disk=disk) as w:
        w.append(b"a")
        found = handle(w.close)
        disk.at = "write"
        w.append(b"b")
        assert found == [sej.LockedError]
        w.append(b"c")
    assert values(read_all(tmp_path)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("step", ["enter", "is_marked", "leave"])
@pytest.mark.parametrize("before", [True, False])
def test_while_a_shared_writer_looks_for_the_end_a_handler_is_refused(
    step: str, before: bool, tmp_path: Path, handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sej.SharedWriter(tmp_path) as w, sej.SharedWriter(tmp_path) as other:
        w.append(b"a")
        other.append(b"b")
        real = getattr(w._appender.lock, step)

        def signalled(*arguments: Any) -> object:
            if before:
                signal.raise_signal(signal.SIGUSR1)
            result = real(*arguments)
            if not before:
                signal.raise_signal(signal.SIGUSR1)
            return result

        found = handle(lambda: w.append(b"handler"))
        with monkeypatch.context() as patch:
            patch.setattr(w._appender.lock, step, signalled)
            assert w.append(b"c") == 2
        assert found == [sej.LockedError]
        assert other.append(b"d") == 3 and w.append(b"e") == 4
    assert values(read_all(tmp_path)) == [b"a", b"b", b"c", b"d", b"e"]
    assert sej.Journal(tmp_path).verify() == []
