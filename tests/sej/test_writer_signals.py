"""A signal's handler, or another thread, that uses or closes a writer in the middle of a call of it."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.codec import Buffer, buffer_reference
from sej.system.disk import File
from tests.sej.hooks import HookedDisk
from tests.sej.support import read_all, values

pytestmark = pytest.mark.both_codecs


class Signalling(HookedDisk):
    """Sends this process a signal, once, at a call of a verb."""

    def __init__(self) -> None:
        super().__init__(self.send)
        self.at = ""

    def send(self, verb: str, file: File | None, data: bytes) -> None:
        if verb == self.at:
            self.at = ""
            signal.raise_signal(signal.SIGUSR1)


@pytest.fixture(params=["chosen", "python"], autouse=True)
def buffer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sej.writing.appender.Buffer", Buffer if request.param == "chosen" else buffer_reference.Buffer)


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
