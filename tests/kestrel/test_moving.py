"""Out of Kestrel and into it, cut short anywhere, verified."""

import os
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kestrel
import sej
from kestrel import segmented
from kestrel.errors import FailedError, MissingError, MoveError, TooLargeError
from kestrel.transfer import plan_at
from sej.system.disk import OS
from tests.crash.disk import CrashDisk, FaultyDisk


def filled(directory: Any, items: int = 2500, **options: Any) -> list[bytes]:
    """A queue with one transaction open, as a killed process leaves it; the values, the open one first."""
    ticks = count(1_500_000_000_000)
    queue = kestrel.Queue(directory, "cars", now_ms=lambda: next(ticks), **options)
    values = [b"%d" % number for number in range(items)]
    queue.put_many(values)
    queue.put(b"expires", expiry=2_000_000_000_000)
    queue.reserve()
    queue._contents.storage.tail.close()
    return [*values, b"expires"]


class TornError(Exception):
    """Whatever cuts a move short."""


class TornWriter:
    """A SEJ writer whose process dies after some calls, before or after the requested operation."""

    def __init__(self, inner: sej.Writer, calls: int, *, after: bool) -> None:
        self.inner = inner
        self.path = inner.path
        self.calls = calls
        self.after = after

    @property
    def offset(self) -> int:
        return self.inner.offset

    def append_many(self, *arguments: Any, **options: Any) -> object:
        self.calls -= 1
        if self.calls < 0 and not self.after:
            raise TornError
        found = self.inner.append_many(*arguments, **options)
        if self.calls < 0:
            raise TornError
        return found

    def sync(self) -> None:
        self.inner.sync()


def test_there_and_back(tmp_path: Path) -> None:
    values = filled(tmp_path / "kestrel")
    before = kestrel.replay(tmp_path / "kestrel", "cars")
    with sej.Writer(tmp_path / "sej") as writer:
        writer.append(b"before")
        moved = kestrel.export(
            tmp_path / "kestrel",
            "cars",
            writer,
            read_back=lambda offset: sej.Scanner(tmp_path / "sej", offset=offset),
        )
    assert (moved.count, moved.first_offset) == (2501, 1)
    with sej.Scanner(tmp_path / "sej", offset=1) as scanner:
        messages = list(scanner)
    assert [message.value for message in messages] == values
    assert messages[-1].key == b"expiry=2000000000000"
    assert kestrel.replay(tmp_path / "kestrel", "cars") == before
    assert not (tmp_path / "kestrel" / "kept").exists()

    back = kestrel.import_(tmp_path / "back", "cars", messages)
    assert back.count == 2501
    assert kestrel.replay(tmp_path / "back", "cars").items == before.recovered
    kestrel.import_(tmp_path / "back", "cars", messages[:3])
    assert len(kestrel.replay(tmp_path / "back", "cars").items) == 2504
    assert [file.name for file in (tmp_path / "back" / "kept").iterdir()] == ["cars.imported"]


def test_open_transactions_are_a_choice(tmp_path: Path) -> None:
    values = filled(tmp_path / "kestrel", 5)
    with sej.Writer(tmp_path / "sej") as writer:
        assert kestrel.export(tmp_path / "kestrel", "cars", writer, open_transactions="leave").count == 5
    with sej.Scanner(tmp_path / "sej") as scanner:
        assert [message.value for message in scanner] == values[1:]


def exported(directory: Path) -> list[tuple[bytes, bytes]]:
    with sej.Scanner(directory) as scanner:
        return [(message.key, message.value) for message in scanner]


def test_expired_items_are_marked_or_left_out(tmp_path: Path) -> None:
    with kestrel.Queue(tmp_path / "two", "cars", now_ms=lambda: 1000) as two:
        two.put(b"stays")
        two.put(b"expired", expiry=2000)
        two.put(b"expires", expiry=9000)
    with segmented.Queue(tmp_path / "three", "jobs", now_ms=lambda: 1000) as three:
        three.put(b"stays")
        three.put(b"expired", expire_time=2000)
        three.put(b"expires", expire_time=9000)
    marked = [(b"", b"stays"), (b"expired=2000", b"expired"), (b"expiry=9000", b"expires")]
    for export, spool, name in ((kestrel.export, "two", "cars"), (segmented.export, "three", "jobs")):
        with sej.Writer(tmp_path / f"{name}-marked") as writer:
            export(tmp_path / spool, name, writer, now_ms=lambda: 5000)
        assert exported(tmp_path / f"{name}-marked") == marked
        with sej.Writer(tmp_path / f"{name}-left") as writer:
            assert export(tmp_path / spool, name, writer, expired="leave", now_ms=lambda: 5000).count == 2
        assert exported(tmp_path / f"{name}-left") == [marked[0], marked[2]]
    with sej.Scanner(tmp_path / "cars-marked") as scanner:
        kestrel.import_(tmp_path / "back", "cars", scanner)
    assert [(item.data, item.expiry) for item in kestrel.replay(tmp_path / "back", "cars").items] == [
        (b"stays", 0),
        (b"expired", 2000),
        (b"expires", 9000),
    ]


@pytest.mark.parametrize("expired", ["mark", "leave"])
def test_an_export_that_is_continued_judges_by_the_time_of_its_beginning(expired: Any, tmp_path: Path) -> None:
    with kestrel.Queue(tmp_path / "kestrel", "cars", now_ms=lambda: 1000) as queue:
        queue.put_many([b"early"] * 1500, expiry=2000)
        queue.put_many([b"late"] * 1500, expiry=9000)
    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            kestrel.export(
                tmp_path / "kestrel",
                "cars",
                TornWriter(writer, 1, after=True),
                expired=expired,
                now_ms=lambda: 5000,
            )
        moved = kestrel.export(
            tmp_path / "kestrel",
            "cars",
            writer,
            expired=expired,
            now_ms=lambda: 10_000,
            read_back=lambda offset: sej.Scanner(tmp_path / "sej", offset=offset),
        )
    keys = [key for key, _ in exported(tmp_path / "sej")]
    assert keys == [b"expired=2000"] * (1500 if expired == "mark" else 0) + [b"expiry=9000"] * 1500
    assert moved.count == len(keys)


def test_nothing_is_left_in_the_source_directory(tmp_path: Path) -> None:
    filled(tmp_path / "kestrel", 5)
    before = sorted((tmp_path / "kestrel").rglob("*"))
    with sej.Writer(tmp_path / "sej") as writer:
        kestrel.export(tmp_path / "kestrel", "cars", writer)
    assert sorted((tmp_path / "kestrel").rglob("*")) == before


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_an_export_that_was_cut_short_is_finished(calls: int, after: bool, tmp_path: Path) -> None:
    values = filled(tmp_path / "kestrel")
    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            kestrel.export(tmp_path / "kestrel", "cars", TornWriter(writer, calls, after=after))
        moved = kestrel.export(tmp_path / "kestrel", "cars", writer)
    assert (moved.count, moved.first_offset) == (2501, 0)
    with sej.Scanner(tmp_path / "sej") as scanner:
        assert [message.value for message in scanner] == values


@pytest.mark.parametrize("kind", ["two", "three"])
def test_whichever_call_of_an_export_fails_a_second_one_stores_nothing_twice(kind: str, tmp_path: Path) -> None:
    """The last calls follow the removal of the progress. The program does not learn whether it finished."""
    export: Any = kestrel.export if kind == "two" else segmented.export
    if kind == "two":
        filled(tmp_path / "from", 5)
    else:
        with segmented.Queue(tmp_path / "from", "cars") as queue:
            queue.put_many([b"%d" % number for number in range(6)])
    for fail_at in count(1):
        disk = FaultyDisk(OS, fail_at)
        with sej.Writer(tmp_path / f"sej-{fail_at}") as writer:
            with suppress(FailedError):
                export(tmp_path / "from", "cars", writer, disk=disk)
            moved = export(tmp_path / "from", "cars", writer)
            assert (writer.offset, moved.count, moved.first_offset) == (6, 6, 0)
            assert export(tmp_path / "from", "cars", writer) == moved
        if disk.failed is None:
            return


def test_an_export_is_made_again_if_the_queue_has_changed_or_its_record_is_removed(tmp_path: Path) -> None:
    with kestrel.Queue(tmp_path / "from", "cars", now_ms=lambda: 0) as queue:
        queue.put(b"old", expiry=5)
        queue.put(b"a")
    with sej.Writer(tmp_path / "sej") as writer:
        kestrel.export(tmp_path / "from", "cars", writer)
        with pytest.raises(MoveError, match="exported from offset 0 on, with other options") as caught:
            kestrel.export(tmp_path / "from", "cars", writer, expired="leave")
        assert caught.value.path is not None
        Path(caught.value.path).unlink()
        assert kestrel.export(tmp_path / "from", "cars", writer, expired="leave").first_offset == 2
        with kestrel.Queue(tmp_path / "from", "cars", now_ms=lambda: 0) as queue:
            queue.put(b"b")
        assert kestrel.export(tmp_path / "from", "cars", writer).first_offset == 3
    assert [value for _, value in exported(tmp_path / "sej")] == [b"old", b"a", b"a", b"old", b"a", b"b"]


def refill(kind: str, spool: Path, now_ms: int) -> None:
    """Remove a queue if it exists, and fill it with the same two items."""
    time: Any = {"now_ms": lambda: now_ms}
    for delete in (True, False):
        queue: Any = kestrel.Queue(spool, "cars", **time) if kind == "two" else segmented.Queue(spool, "cars", **time)
        if delete:
            queue.delete()
        else:
            with queue:
                queue.put_many([b"a", b"b"])


@pytest.mark.parametrize("kind", ["two", "three"])
@pytest.mark.parametrize("later_ms", [0, 7])
def test_a_queue_that_was_emptied_and_filled_with_equal_items_is_exported_again(
    kind: str, later_ms: int, tmp_path: Path
) -> None:
    export: Any = kestrel.export if kind == "two" else segmented.export
    spool = tmp_path / "spool"
    with sej.Writer(tmp_path / "sej") as writer:
        for second, first_offset in ((1, 0), (2, 2)):
            refill(kind, spool, 1000 + later_ms * second)
            for file in spool.glob("cars*"):
                os.utime(file, ns=(second * 10**9, second * 10**9))
            for _ in range(2):
                moved = export(spool, "cars", writer)
                assert (moved.count, moved.first_offset) == (2, first_offset)
    assert [value for _, value in exported(tmp_path / "sej")] == [b"a", b"b"] * 2


def test_an_export_is_not_finished_on_another_queue_or_journal(tmp_path: Path) -> None:
    filled(tmp_path / "kestrel")
    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            kestrel.export(tmp_path / "kestrel", "cars", TornWriter(writer, 1, after=False))
        writer.append_many([b"foreign"] * 2000)
        with pytest.raises(MoveError, match="another program wrote"):
            kestrel.export(tmp_path / "kestrel", "cars", writer)
        with kestrel.Queue(tmp_path / "kestrel", "cars") as queue:
            queue.get()
        with pytest.raises(MoveError, match="changed since"):
            kestrel.export(tmp_path / "kestrel", "cars", writer)


@pytest.mark.parametrize("after", [False, True])
def test_messages_of_another_program_are_not_taken_for_items(after: bool, tmp_path: Path) -> None:
    """They follow what an export that was cut short appended; fewer than a batch."""
    filled(tmp_path / "kestrel")

    def read_back(offset: int) -> list[sej.Message]:
        with sej.Scanner(tmp_path / "sej", offset) as scanner:
            return list(scanner)

    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            kestrel.export(tmp_path / "kestrel", "cars", TornWriter(writer, 1, after=after), read_back=read_back)
        if not after:
            writer.append_many([b"foreign"] * 600)
            with pytest.raises(MoveError, match="the 1600 messages from offset 0 on are not the items"):
                kestrel.export(tmp_path / "kestrel", "cars", writer, read_back=read_back)
            assert writer.offset == 1600
            (tmp_path / "sej" / "cars.exported").unlink()
        moved = kestrel.export(tmp_path / "kestrel", "cars", writer, read_back=read_back)
        assert (moved.count, moved.first_offset) == (2501, 0 if after else 1600)


def test_what_reads_back_wrong_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "kestrel", 10)
    wrong = [sej.Message(number, 0, 0, b"", b"%d" % number) for number in range(11)]
    with sej.Writer(tmp_path / "sej") as writer, pytest.raises(MoveError, match="do not remove the source"):
        kestrel.export(tmp_path / "kestrel", "cars", writer, read_back=lambda offset: wrong)


def messages(number: int) -> list[sej.Message]:
    return [sej.Message(at, 1_500_000_000_000_000_000 + at, 0, b"", b"%d" % at * 3) for at in range(number)]


def test_an_import_is_whole_or_not_at_all_after_a_power_loss() -> None:
    disk = CrashDisk()
    with kestrel.Queue("/q", "cars", disk=disk, sync="always") as queue:
        queue.put(b"first")
    kestrel.import_("/q", "cars", messages(4), disk=disk)
    due = [b"first", *(message.value for message in messages(4))]
    tried = 0
    for crash in disk.crash_states():
        if crash.disk.status("/q") is None:
            continue
        found = [item.data for item in kestrel.replay("/q", "cars", disk=crash.disk).items]
        assert found in ([], [b"first"], due) or len(found) == 1
        if found[:1] == [b"first"]:
            ticks = count(1_700_000_000_000)
            kestrel.import_("/q", "cars", messages(4), disk=crash.disk, now_ms=lambda: next(ticks))  # noqa: B023
            again = [item.data for item in kestrel.replay("/q", "cars", disk=crash.disk).items]
            assert again == due
        tried += 1
    assert tried > 20


def values_in(kind: str, directory: Any, disk: Any = OS) -> list[bytes]:
    """The items of the queue of an import."""
    load: Any = kestrel.replay if kind == "two" else segmented.load
    return [item.data for item in load(directory, "cars", disk=disk).items]


IMPORTS: dict[str, Any] = {"two": kestrel.import_, "three": segmented.import_}


@pytest.mark.parametrize("kind", IMPORTS)
def test_an_import_that_finished_adds_nothing_if_it_is_repeated(kind: str, tmp_path: Path) -> None:
    """The caller may have been killed before it learnt that."""
    due = [message.value for message in messages(4)]
    moved = IMPORTS[kind](tmp_path, "cars", messages(4))
    assert IMPORTS[kind](tmp_path, "cars", messages(4)) == moved
    assert values_in(kind, tmp_path) == due
    for number in (2, 5, 5):  # the first ones; and more: these are other messages
        assert IMPORTS[kind](tmp_path, "cars", messages(number)).count == number
    assert values_in(kind, tmp_path) == due + due[:2] + [message.value for message in messages(5)]


@pytest.mark.parametrize("kind", IMPORTS)
def test_messages_without_a_timestamp_are_recognised_too(kind: str, tmp_path: Path) -> None:
    """A queue stores the time of the import for them: that of the second one, if there is one more message."""
    timeless = [message._replace(timestamp=sej.NO_TIMESTAMP) for message in messages(3)]
    load: Any = kestrel.replay if kind == "two" else segmented.load
    for now_ms, given in ((10, timeless[:2]), (20, timeless[:2]), (30, timeless)):
        IMPORTS[kind](tmp_path, "cars", given, now_ms=lambda at=now_ms: at)
    assert [item.add_time for item in load(tmp_path, "cars").items] == [10, 10, 30, 30, 30]


@pytest.mark.parametrize("kind", IMPORTS)
def test_whichever_call_of_an_import_fails_a_second_one_adds_nothing_twice(kind: str) -> None:
    """Also one that fails after it has acted."""
    due = [message.value for message in messages(2)]
    for number in count(1):
        inner = CrashDisk()
        disk = FaultyDisk(inner, number)
        with suppress(FailedError):
            IMPORTS[kind]("/q", "cars", messages(2), disk=disk)
        for _ in range(2):
            IMPORTS[kind]("/q", "cars", messages(2), disk=inner)
            assert values_in(kind, "/q", inner) == due, (number, disk.failed)
        if disk.failed is None:
            break
    assert number > 15


@pytest.mark.parametrize("kind", IMPORTS)
def test_the_same_messages_are_imported_again_if_the_queue_has_changed(kind: str, tmp_path: Path) -> None:
    due = [message.value for message in messages(3)]
    IMPORTS[kind](tmp_path, "cars", messages(3))
    queue: Any
    with kestrel.Queue(tmp_path, "cars") if kind == "two" else segmented.Queue(tmp_path, "cars") as queue:
        if kind == "two":
            taken = [queue.get().data for _ in due]
        else:
            reader = queue.reader()
            taken = [item.data for _ in due if reader.commit(item := reader.get())]
    assert taken == due
    assert IMPORTS[kind](tmp_path, "cars", messages(3)).count == 3
    assert values_in(kind, tmp_path)[-3:] == due
    (tmp_path / "kept" / "cars.imported").write_bytes(b"torn")
    with pytest.raises(MoveError, match="not a readable record of a move"):
        IMPORTS[kind](tmp_path, "cars", messages(3))


def test_keys_and_other_messages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MoveError, match="no place"):
        kestrel.import_(tmp_path, "cars", [sej.Message(0, 0, 0, b"key", b"value")])
    with pytest.raises(MoveError, match="type 3"):
        kestrel.import_(tmp_path, "cars", [sej.Message(0, 0, 3, b"", b"value")])
    assert (
        kestrel.import_(tmp_path, "cars", [sej.Message(0, sej.NO_TIMESTAMP, 3, b"k", b"value")], keys="drop").count == 1
    )
    (item,) = kestrel.replay(tmp_path, "cars").items
    assert item.data == b"value"
    assert item.add_time

    def torn() -> Any:
        yield from messages(2000)
        raise TornError

    with pytest.raises(TornError):
        kestrel.import_(tmp_path, "cars", torn())
    assert kestrel.import_(tmp_path, "cars", messages(3)).count == 3  # nothing was added before
    assert len(kestrel.replay(tmp_path, "cars").items) == 4


def test_libkestrel_there_and_back(tmp_path: Path) -> None:
    with segmented.Queue(tmp_path / "from", "jobs") as queue:
        queue.put_many([b"%d" % number for number in range(2500)])
        queue.put(b"expires", expire_time=2_000_000_000_000)
        reader = queue.reader("r")
        for number in (1, 2, 5):
            while (item := reader.get()) is not None and item.id != number:
                pass
            reader.commit(number)
    due = [b"2", b"3", *(b"%d" % number for number in range(5, 2500)), b"expires"]
    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            segmented.export(tmp_path / "from", "jobs", TornWriter(writer, 1, after=True), reader="r")
        moved = segmented.export(
            tmp_path / "from", "jobs", writer, reader="r", read_back=lambda at: sej.Scanner(tmp_path / "sej", offset=at)
        )
    assert (moved.count, moved.first_offset) == (len(due), 0)
    with sej.Scanner(tmp_path / "sej") as scanner:
        messages = list(scanner)
    assert [message.value for message in messages] == due

    with pytest.raises(TooLargeError):
        segmented.import_(tmp_path / "back", "jobs", [*messages[:2], messages[2]._replace(value=bytes(20 << 20))])
    assert segmented.import_(tmp_path / "back", "jobs", messages).count == len(due)
    items = segmented.load(tmp_path / "back", "jobs").items
    assert [item.data for item in items] == due
    assert [item.add_time for item in items] == [message.timestamp // 1_000_000 for message in messages]
    assert items[-1].expire_time == 2_000_000_000_000


def test_an_export_for_a_reader_that_is_not_there_makes_none(tmp_path: Path) -> None:
    with segmented.Queue(tmp_path / "q", "jobs") as queue:
        queue.put_many([b"a", b"b"])
    with sej.Writer(tmp_path / "j") as writer:
        with pytest.raises(MissingError, match="no reader 'typo'"):
            segmented.export(tmp_path / "q", "jobs", writer, reader="typo")
        assert list(segmented.load(tmp_path / "q", "jobs").readers) == [""]
        assert segmented.export(tmp_path / "q", "jobs", writer).count == 2


def test_a_plan_of_any_length_is_read_again(tmp_path: Path) -> None:
    """A reader's plan names each id that was committed out of order."""
    plan = plan_at(str(tmp_path / "plan"), OS)
    plan.store({"holds": [list(range(10**12, 10**12 + 80_000))], "count": 3})
    assert (plan.load() or {})["count"] == 3


def test_an_import_into_libkestrel_that_was_cut_short_between_two_batches_is_finished(tmp_path: Path) -> None:
    disk, due = CrashDisk(), [message.value for message in messages(2500)]
    restore = segmented.Queue.restore

    def dying(queue: segmented.Queue, items: Any) -> range:
        if queue.tail_id:
            raise TornError
        return restore(queue, items)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segmented.Queue, "restore", dying)
        with pytest.raises(TornError):
            segmented.import_("/q", "cars", messages(2500), disk=disk)
    assert len(values_in("three", "/q", disk)) == 1000
    assert segmented.import_("/q", "cars", messages(2500), disk=disk).count == 2500
    assert values_in("three", "/q", disk) == due
