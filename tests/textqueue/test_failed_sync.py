"""A sync fails, the queue is reopened, and later the power fails: acknowledged messages are on disk.

The disk of these tests behaves as Linux does: after a failed sync the pages are clean, reads return the bytes, and a
later sync does not write them.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.system.disk import OS, Disk
from tests.crash.disk import CrashDisk, Fault, FaultyDisk, FaultyOnly, LostName
from tests.textqueue.claiming import create, got, plain, taken
from textqueue import FileInUseError, MessageStatus, TextQueue, TextQueueError
from textqueue.sidecar import sidecar_path

PATH = "/q/jobs.tq"
# If an index cannot be written, the writer warns, and reads are slower.
pytestmark = pytest.mark.filterwarnings("ignore:the index .* could not be written:RuntimeWarning")
MUTEX = "mutex=" + " " * 40
Work = Callable[[Disk, int], Iterator[bytes]]
"""One process: opens, works, and yields bytes that are safe in the file. Raises the errors of the disk."""


def opened(disk: Disk) -> TextQueue:
    return TextQueue(PATH, disk=disk, settle_s=0)


def read(disk: Disk, path: str = PATH) -> bytes:
    try:
        file = disk.open(path, "read")
    except FileNotFoundError:
        return b""
    return file.read(1 << 20, 0)


def appending(disk: Disk, turn: int) -> Iterator[bytes]:
    with opened(disk) as q:
        for n in range(3):
            q.append(f"{turn}.{n}")
            q.sync()
            yield b"-%d.%d\n" % (turn, n)


def marking(disk: Disk, turn: int) -> Iterator[bytes]:
    with opened(disk) as q:
        q.append_many([f"{turn}.{n}" for n in range(4)], ["v=    "])
        for n, message in enumerate(q.messages()):
            message.mark_as_cleared()
            message["v"] = str(n)
            if n % 2:
                q.sync()
                yield read(disk)


def claiming(disk: Disk, turn: int) -> Iterator[bytes]:
    with opened(disk) as q:
        q.append(f"{turn}", [MUTEX])
        q.append(f"{turn}.free")
        claims = [taken(q), taken(q)]
        q.sync()
        yield read(disk)
        for claim in claims:
            claim.done()
        q.sync()
        yield read(disk)


def seen(disk: Disk, turn: int) -> Iterator[bytes]:
    """Sync the bytes of all processes, also if this process wrote nothing."""
    with opened(disk) as q:
        there = read(disk)
        if there:
            q.sync()
            yield there
        q.append(f"{turn}")
        list(q.messages())[-1].mark_as_cleared()
        if turn > 1:
            q.sync()
            yield b"=%d\n" % turn


def retried(disk: Disk, turn: int) -> Iterator[bytes]:
    """Try again with the same object after a failure."""
    with opened(disk) as q:
        for n in range(3):
            q.append(f"{turn}.{n}")
            for _ in range(3):
                with contextlib.suppress(OSError):
                    q.sync()
                    yield b"-%d.%d\n" % (turn, n)
                    break


CASES: dict[str, Work] = {
    "append": appending,
    "marks": marking,
    "claims": claiming,
    "seen": seen,
    "retried": retried,
}


def made() -> CrashDisk:
    disk = CrashDisk()
    disk.mkdir("/q")
    return disk


def run(work: Work, disk: Disk, inner: CrashDisk, turn: int) -> int:
    """Return the number of acknowledgements; each time, the bytes must be on disk."""
    count = 0
    with contextlib.suppress(OSError, TextQueueError):
        for what in work(disk, turn):
            assert what in read(inner.crash())
            count += 1
    return count


@pytest.mark.parametrize("fault", ["sync-loses", "eio"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_acknowledged_after_a_failed_sync_is_on_the_medium(name: str, fault: Fault) -> None:
    work, said = CASES[name], 0
    for k in itertools.count(1):
        disk = made()
        first = FaultyOnly(disk, "sync", k) if fault == "sync-loses" else FaultyDisk(disk, k, fault)
        run(work, first, disk, 1)
        said += run(work, disk, disk, 2)
        if first.calls < k:
            break
    assert said > k


@pytest.mark.parametrize("name", CASES)
def test_a_second_sync_that_fails_after_reopening_changes_nothing(name: str) -> None:
    work, fired, more = CASES[name], 0, True
    for k in itertools.count(1):
        for j in itertools.count(1):
            disk = made()
            first, second = FaultyOnly(disk, "sync", k), FaultyOnly(disk, "sync", j)
            run(work, first, disk, 1)
            run(work, second, disk, 2)
            more = first.failed is not None
            if second.failed is None:
                break
            fired += 1
            run(work, disk, disk, 3)
        if not more:
            break
    assert fired > 1


# --- draining


def drain(disk: Disk) -> None:
    w = sej.Writer("/j", disk=disk)
    try:
        with opened(disk) as q:
            q.drain_to(w, batch=2)
    finally:
        with contextlib.suppress(OSError, sej.SejError):
            w.close()


@pytest.mark.parametrize("fault", ["sync-loses", "eio"])
def test_a_drain_repeats_and_loses_nothing_after_a_failed_call(fault: Fault) -> None:
    for k in itertools.count(1):
        disk = made()
        create(disk, PATH, b"-a\n-b\n-c\n")
        first = FaultyOnly(disk, "sync", k) if fault == "sync-loses" else FaultyDisk(disk, k, fault)
        with contextlib.suppress(OSError, sej.SejError):
            drain(first)
        disk.unlock()
        drain(disk)
        left = disk.crash()
        assert read(left) == b"=a\n=b\n=c\n"
        found = [bytes(message.value) for message in sej.Scanner("/j", disk=left)]
        assert found == [b"a", b"b", b"c"], k
        if first.calls < k:
            break
    assert k > 5


def test_an_intent_whose_name_may_be_lost_is_made_durable_before_its_batch_is_appended() -> None:
    disk = made()
    with opened(disk) as q:
        q.append_many(["a", "b", "c"])
        q.sync()
    with pytest.raises(OSError, match="could not be synced"):
        drain(LostName(disk, sidecar_path(PATH, ".drain")))

    class Dies:
        """The power fails when the first batch is in the journal."""

        def append_once(self, name: str, number: int, values: object, keys: object = None) -> None:
            self.left = disk.crash()
            raise KeyboardInterrupt

        def sync(self) -> None:
            raise AssertionError

    writer = Dies()
    with opened(disk) as q, pytest.raises(KeyboardInterrupt):
        q.drain_to(writer)
    assert b'"number":1,' in read(writer.left, sidecar_path(PATH, ".drain"))


# --- the record of the last sync, and users


def test_bytes_known_to_be_on_disk_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    sizes: list[int] = []

    class Counts(FaultyDisk):
        """Counts the bytes written into the queue file, as on a system that cannot read past its cache."""

        blind = True

        def before(self, verb: str, file: Any = None, data: bytes | None = None) -> None:
            if verb in ("write", "write_at") and file.path == os.fspath(path):
                sizes.append(len(data or b""))

    with TextQueue(path, disk=Counts(OS, 0)) as q:

        def written(act: Callable[[], object]) -> int:
            act()
            sizes.clear()
            q.sync()
            return sum(sizes)

        assert written(lambda: q.append_many([f"{n}" * 50 for n in range(200)])) > 20_000
        assert written(lambda: None) == 0
        assert written(lambda: list(q.messages())[100].mark_as_cleared()) < 1000
        assert written(lambda: q.append("x")) < 1000


def test_a_change_by_a_user_is_written_again_too() -> None:
    disk = made()
    with opened(disk) as q:
        q.append("a")
        q.sync()
    file = disk.open(PATH, "append")
    file.write(b"-by hand\n")
    file.lose()
    file.close()
    with opened(disk) as q:
        q.sync()
    assert read(disk.crash()) == b"-a\n-by hand\n"


def test_a_file_that_another_program_keeps_open_is_not_claimed_to_be_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("queue_file", "tq_file"):  # an edit that takes longer may not be the only change
        monkeypatch.setattr(f"textqueue.editing.{module}.MOMENT_S", 60.0)
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n")
    with TextQueue(path) as q:
        with path.open("rb"), pytest.raises(FileInUseError, match="open"):
            q.sync()
        q.sync()
        with path.open("rb"):  # only messages of this library are in doubt: each is proven, as for an edit
            got(q).mark_as_cleared()
            q.append("b")
            q.sync()
    assert plain(path) == b"=a\n-b\n"


def test_a_save_between_read_and_write_is_not_overwritten(tmp_path: Path) -> None:
    """A user saves in place, over the same bytes, during a rewrite: the save is kept."""
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n-b\n")
    saved: list[int] = []

    class Saves(FaultyDisk):
        """Saves as a user does, right before the file is written again."""

        blind = True

        def before(self, verb: str, file: Any = None, data: bytes | None = None) -> None:
            if verb == "write_at" and file.path == os.fspath(path) and not saved:
                # During the lease, an open by another process waits until the rewrite is over.
                saved.append(os.spawnlp(os.P_NOWAIT, "sh", "sh", "-c", f"printf -- '-A\\n-B\\n' > '{path}'"))

    with TextQueue(path, disk=Saves(OS, 0)) as q:
        q.sync()
    os.waitpid(saved[0], 0)
    assert plain(path) == b"-A\n-B\n"


def test_writing_again_is_not_a_change_for_readers_and_workers(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append_many(["a", "b", "c"])
        first = got(other)
        epoch = q._inputs.sources[0].file.ledger.epoch
        q.sync()
        q._inputs.sources[0].file.ledger.refresh(look=True)
        assert q._inputs.sources[0].file.ledger.epoch == epoch
        first.mark_as_cleared()
        assert got(other).value == "b"
        assert not other.conflicts
        assert not q.conflicts
        assert [m.value for m in q.messages({MessageStatus.cleared})] == ["a"]
