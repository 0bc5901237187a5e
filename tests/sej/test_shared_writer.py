"""The shared writer with other shared writers, exclusive writers, the original, retention, crashes and damage."""

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.retention import readers_lock
from sej.system.disk import OS, Disk, File
from sej.writing.opening import open_end
from sej.writing.shared_writer import SharedDurability
from tests.sej.hooks import PATIENCE_S, HookedDisk, Worker, bounded, script, until
from tests.sej.support import flip, read_all, segment, values, write


def test_two_take_turns_and_rotate_rightly(tmp_path: Path) -> None:
    with (
        sej.SharedWriter(tmp_path, segment_bytes=100) as one,
        sej.SharedWriter(tmp_path, segment_bytes=300) as other,
    ):
        offsets = [writer.append(b"%d" % n * 20) for n in range(10) for writer in (one, other)]
        spans = [one.append_many([b"x"] * 30), other.append_many([b"y"] * 30), one.append_many([])]
    assert offsets == list(range(20))
    assert spans == [range(20, 50), range(50, 80), range(80, 80)]
    assert len(values(read_all(tmp_path))) == 80
    assert sej.Journal(tmp_path).verify() == []


def test_a_segment_that_is_ended_has_a_checksum_for_every_message(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, segment_bytes=500) as one, sej.SharedWriter(tmp_path, segment_bytes=500) as other:
        for number in range(30):
            (one, other)[number % 2].append(b"value %d" % number)
    *ended, _ = sorted((tmp_path / "jnl").iterdir())
    assert len(ended) >= 2
    for file in ended:
        flip(file, 24)
        assert [problem.kind for problem in sej.Journal(tmp_path).verify()] == ["checksum"]
        flip(file, 24)


@pytest.mark.parametrize("kind", [sej.Writer, sej.SharedWriter])
def test_index_entries_are_written_after_their_bytes_were_synced(kind: Any, tmp_path: Path) -> None:
    synced = 0
    ends: list[int] = []

    def hook(verb: str, file: File | None, data: bytes) -> None:
        nonlocal synced
        if verb == "sync" and file is not None and file.path.endswith(".jnl"):
            synced = file.status().size
        if verb.startswith("write") and file is not None and file.path.endswith(".idx") and len(data) >= 64:
            ends.append(int.from_bytes(data[-64:][8:16], "big"))
            assert ends[-1] <= synced

    with kind(tmp_path, disk=HookedDisk(hook)) as w:
        for _ in range(38):
            w.append(b"v" * 500_000)
    with kind(tmp_path, disk=HookedDisk(hook)) as w:
        w.append(b"v")
    assert len(ends) >= 2, "as it grew, and at the next opening"


def test_an_exclusive_writer_excludes_a_shared_one_while_it_is_open(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, lock_timeout=0.0) as shared:
        shared.append(b"a")
        with sej.Writer(tmp_path, segment_bytes=30) as exclusive:
            exclusive.append(b"b")
            with pytest.raises(sej.LockedError, match=f"pid={os.getpid()}"):
                shared.append(b"c")
        assert shared.append(b"c") == 2
        with sej.Writer(tmp_path) as exclusive:
            exclusive.append_many([b"d", b"e"])
        assert shared.append(b"f") == 5
    assert values(read_all(tmp_path)) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_an_exclusive_writer_that_cannot_destroy_the_mark_is_refused(tmp_path: Path) -> None:
    """Else the shared writer believes that the old segment is still the last one."""

    def refuse(verb: str, file: File | None, data: bytes) -> None:
        if verb in ("truncate", "write_at") and file is not None and file.path.endswith("jnl.lck"):
            raise OSError(errno.ENOSPC, "injected")

    with sej.SharedWriter(tmp_path) as w:
        w.append(b"0")
        with pytest.raises(OSError, match="injected"):
            sej.Writer(tmp_path, disk=HookedDisk(refuse))
        assert w.append(b"1") == 1
        with sej.Writer(tmp_path) as exclusive:
            exclusive.end.rotate()
        assert w.append(b"2") == 2
    assert values(read_all(tmp_path)) == [b"0", b"1", b"2"]
    assert sej.Journal(tmp_path).verify() == []
    for disk in (OS, HookedDisk(refuse)):
        sej.Writer(tmp_path, disk=disk).close()  # a name that stays is only a hint for people


def test_a_failed_sync_of_what_the_first_append_finds_is_a_failure(tmp_path: Path) -> None:
    """It is reported as one, and the writer has failed."""
    sej.SharedWriter(tmp_path).append(b"not synced")

    def refuse(verb: str, file: File | None, data: bytes) -> None:
        if verb == "sync" and file is not None and file.path.endswith(".jnl"):
            raise OSError(errno.EIO, "injected")

    w = sej.SharedWriter(tmp_path, disk=HookedDisk(refuse))
    for _ in range(2):
        with pytest.raises(sej.WriterFailedError, match="injected"):
            w.append(b"v")
    w.close()


def test_a_torn_tail_of_a_dead_one_is_cut_and_kept(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as one, sej.SharedWriter(tmp_path) as other:
        one.append(b"good")
        with segment(tmp_path, 0).open("ab") as file:
            file.write(bytes(7) + b"\x01torn")
        assert other.append(b"next") == 1
        assert one.append(b"and next") == 2
    assert values(read_all(tmp_path)) == [b"good", b"next", b"and next"]
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_one_that_dies_between_two_segments_is_noticed(tmp_path: Path) -> None:
    code = """
import os, sys, sej, sej.writing.appender
make = sej.writing.appender.start_segment
def die(*arguments):
    make(*arguments)
    os._exit(9)
sej.writing.appender.start_segment = die
sej.SharedWriter(sys.argv[1], segment_bytes=10).append(b"b")
"""
    with sej.SharedWriter(tmp_path) as survivor:
        survivor.append(b"a")
        child = script(code, tmp_path)
        assert child.wait(60) == 9
        child.communicate()
        assert survivor.append(b"c") == 1
        assert survivor.append(b"d") == 2
    assert values(read_all(tmp_path)) == [b"a", b"c", b"d"]
    assert sej.Journal(tmp_path).verify() == []


def test_the_original_unlinks_the_lock_file(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as one:
        one.append(b"a")
        (tmp_path / "jnl.lck").unlink()
        with sej.Writer(tmp_path) as other:
            other.append(b"b")
        one._appender._look_at = 0.0
        assert one.append(b"c") == 2


def test_the_durability_buffer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no message can wait in the buffer"):
        sej.SharedWriter(tmp_path, durability="buffer")  # type: ignore[arg-type]


@pytest.mark.parametrize("turn", ["before the last sync", "during it"])
def test_an_append_that_meets_close_is_synced_or_refused(
    turn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered = [0]
    late: list[Worker] = []
    closing, held, closed = threading.Event(), threading.Event(), threading.Event()

    def anybody_may_write() -> bool:
        free = w.life.mutex.acquire(blocking=False)
        if free:
            w.life.mutex.release()
        return free

    def hook(verb: str, file: File | None, _: bytes) -> None:
        if verb == "sync" and file is not None and file.path.endswith(".jnl"):
            covered.append(file.status().size)
            if closing.is_set() and turn == "during it" and not late:
                late.append(Worker(lambda: w.append(b"late")))
                if Worker(anybody_may_write).result():
                    until(held.is_set)

    w = sej.SharedWriter(tmp_path, durability="disk", disk=HookedDisk(hook))
    w.append(b"first")
    make_durable = w._syncer.make_durable

    def slow(offset: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            held.set()
            assert closed.wait(PATIENCE_S)
        make_durable(offset)

    monkeypatch.setattr(w._syncer, "make_durable", slow)
    if turn == "during it":
        w._syncer.durable_offset = 0  # so that there is something left to sync
    else:
        late.append(Worker(lambda: w.append(b"late")))
        until(held.is_set)
    closing.set()
    w.close()
    closed.set()
    if turn == "during it":
        with pytest.raises(sej.ClosedError):
            late[0].result()
    else:
        assert late[0].result() == 1
    assert covered[-1] == segment(tmp_path, 0).stat().st_size


def test_a_turn_continues_after_an_append_that_was_refused_or_empty(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as w:

        def append() -> None:
            assert w.append_many([]) == range(0)
            for key in (b"k" * 200, "no bytes"):
                with pytest.raises((sej.InvalidMessageError, TypeError)):
                    w.append(b"refused", key)  # type: ignore[arg-type]
                with pytest.raises((sej.InvalidMessageError, TypeError)):
                    w.append_many([b"refused"], [key])  # type: ignore[list-item]
                w.append(b"good")

        w.turn(append)
    assert values(read_all(tmp_path)) == [b"good"] * 2


def test_a_segment_that_is_opened_during_a_sync_stays_in_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed = []

    def turn(disk: Disk, file: File, start: int, end: int) -> None:
        renewed.append(file)
        if len(renewed) == 1:  # another thread finds that another process has started a segment
            w._appender._continue_at(open_end(w._appender.directory, w._appender._kept, w._appender.lock))

    with sej.Writer(tmp_path / "source") as writer:
        writer.append(bytes(2 << 20))  # more than an opening renews
    shutil.copytree(tmp_path / "source", tmp_path / "copy")
    with sej.SharedWriter(tmp_path / "copy") as w:
        w.append(b"x")
        first = w._appender.last
        monkeypatch.setattr("sej.writing.opening.renew", turn)
        first.sync()
        second = w._appender.last
        assert second is not first
        second.sync()
        second.keep(w._appender.buffer.position, w._appender.offset)
        second.sync()
        assert renewed == [first.file, second.file]


def test_the_directory_of_an_open_writer_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sej.writing.appender._LOOK_S", 0.0)
    with sej.SharedWriter(tmp_path / "q") as writer:
        writer.append(b"x")
        shutil.rmtree(tmp_path / "q")
        with pytest.raises(sej.JournalNotFoundError, match="`sej append` creates one, reading does not"):
            writer.append(b"late")


@pytest.mark.parametrize("durability", ["os", "disk"])
@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_synced_in_a_journal_that_was_removed(
    tmp_path: Path, durability: SharedDurability, again: bool
) -> None:
    with sej.SharedWriter(tmp_path / "q") as unused, sej.SharedWriter(tmp_path / "q", durability=durability) as w:
        w.append(b"x")
        w.sync()
        shutil.rmtree(tmp_path / "q")
        if again:
            write(tmp_path / "q", [b"a", b"b", b"c"])
        for writer in (w, w) if again else (w, w, unused):
            with pytest.raises(sej.JournalNotFoundError, match="removed and created" if again else "no journal here"):
                writer.sync()
        if durability == "disk":
            with pytest.raises(sej.JournalNotFoundError):
                w.append(b"y")
        assert (tmp_path / "q").exists() == again


def test_nothing_is_synced_in_a_segment_that_was_removed(tmp_path: Path) -> None:
    writer = sej.SharedWriter(tmp_path)
    writer.append(b"x")
    segment(tmp_path, 0).unlink()
    for _ in range(2):
        with pytest.raises(sej.WriterFailedError, match="segment was removed while a writer appended"):
            writer.sync()
    writer.close()


def test_a_segment_that_was_sealed_and_removed_is_not_missed(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as writer, sej.SharedWriter(tmp_path, segment_bytes=1) as other:
        writer.append(b"x")
        other.append(b"y")
        sej.Journal(tmp_path).clean(max_bytes=0)
        assert sej.Journal(tmp_path).first_offset > 0
        writer.sync()
        assert writer.append(b"z") == 2


# --- what a turn of a shared writer costs, and what must not hold it up


def test_catching_up_with_others_takes_bounded_memory(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as one, sej.SharedWriter(tmp_path) as other:
        one.append(b"first")
        for _ in range(40):
            other.append(b"v" * 1_000_000)
        with bounded(20_000_000):
            assert one.append(b"last") == 41
        assert other.append(b"other") == 42
    assert sej.Journal(tmp_path).verify() == []


def test_an_append_does_not_wait_for_a_process_that_deletes_segments(tmp_path: Path) -> None:
    retention = sej.Retention(max_bytes=300)
    with sej.SharedWriter(tmp_path, segment_bytes=100, retention=retention) as w:
        w.append(b"first")
        with readers_lock(Directory(tmp_path, OS)):
            assert Worker(lambda: w.append_many([b"v" * 50] * 9)).result() == range(1, 10)
            assert len(read_all(tmp_path)) == 10
        w.append_many([b"v" * 50] * 9)
    assert len(read_all(tmp_path)) < 10


def test_retention_that_fails_does_not_fail_the_append(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, segment_bytes=100, retention=sej.Retention(max_bytes=300)) as w:
        (tmp_path / "ofs" / ".lock").mkdir()
        with pytest.warns(RuntimeWarning, match="retention failed"):
            assert w.append(b"v" * 100) == 0
        with pytest.warns(RuntimeWarning, match="retention failed"):
            assert w.append(b"v" * 100) == 1
    assert len(read_all(tmp_path)) == 2
