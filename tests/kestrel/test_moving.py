"""Out of Kestrel and into it, cut short anywhere, verified."""

import os
from contextlib import nullcontext, suppress
from functools import partial
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
from tests.crash.disk import CrashDisk, Fault, FaultyDisk, faulty
from tests.kestrel.support import KINDS, OPENERS, HookedWriter, Three, Two
from tests.sej.support import read_all


def filled(directory: Any, items: int = 2500, kind: Any = Two) -> list[bytes]:
    """A queue with one item taken, as a killed process leaves it; the values, the taken one first."""
    q = kind.open(directory, now_ms=count(1_500_000_000_000).__next__)
    values = [b"%d" % number for number in range(items)]
    q.put_many(values)
    q.put(b"expires", 2_000_000_000_000)
    q.take()
    q.queue._tail.close()
    return [*values, b"expires"]


class TornError(Exception):
    """Whatever cuts a move short."""


def torn(inner: sej.Writer, calls: int, *, after: bool) -> HookedWriter:
    """A SEJ writer whose process dies after some calls, before or after the requested operation."""
    left = count(calls - 1, -1)

    def dying(is_after: bool) -> None:
        if is_after is after and next(left) < 0:
            raise TornError

    return HookedWriter(inner, dying)


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back(kind: Any, tmp_path: Path) -> None:
    name, spool, back = "two" if kind is Two else "three", tmp_path / "spool", tmp_path / "back"
    values = filled(spool, kind=kind)
    before, files = LOADS[name](spool, "cars"), sorted(spool.rglob("*"))
    with sej.Writer(tmp_path / "sej") as writer:
        writer.append(b"before")
        moved = EXPORTS[name](spool, "cars", writer, read_back=partial(sej.Scanner, tmp_path / "sej"))
    assert (moved.count, moved.first_offset) == (2501, 1)
    messages = read_all(tmp_path / "sej", offset=1)
    assert [message.value for message in messages] == values
    assert messages[-1].key == b"expiry=2000000000000"
    assert LOADS[name](spool, "cars") == before
    assert sorted(spool.rglob("*")) == files

    with pytest.raises(TooLargeError) if kind is Three else nullcontext():
        IMPORTS[name](tmp_path / "large", "cars", [*messages[:2], messages[2]._replace(value=bytes(20 << 20))])
    assert IMPORTS[name](back, "cars", messages).count == 2501
    items = before.recovered if kind is Two else before.items
    assert LOADS[name](back, "cars").items == items
    IMPORTS[name](back, "cars", messages[:3])
    assert values_in(name, back) == values + values[:3]
    assert [file.name for file in (back / "kept").iterdir()] == ["cars.imported"]


def test_open_transactions_are_a_choice(tmp_path: Path) -> None:
    values = filled(tmp_path / "kestrel", 5)
    with sej.Writer(tmp_path / "sej") as writer:
        assert kestrel.export(tmp_path / "kestrel", "cars", writer, open_transactions="leave").count == 5
    assert [value for _, value in exported(tmp_path / "sej")] == values[1:]


def exported(directory: Path) -> list[tuple[bytes, bytes]]:
    return [(message.key, message.value) for message in read_all(directory)]


IMPORTS: dict[str, Any] = {"two": kestrel.import_, "three": segmented.import_}
EXPORTS: dict[str, Any] = {"two": kestrel.export, "three": segmented.export}
LOADS: dict[str, Any] = {"two": kestrel.replay, "three": segmented.load}


def values_in(kind: str, directory: Any, disk: Any = OS) -> list[bytes]:
    return [item.data for item in LOADS[kind](directory, "cars", disk=disk).items]


def test_expired_items_are_marked_or_left_out(tmp_path: Path) -> None:
    with (
        kestrel.Queue(tmp_path / "two", "cars", now_ms=lambda: 1000) as two,
        segmented.Queue(tmp_path / "three", "cars", now_ms=lambda: 1000) as three,
    ):
        for value, time in ((b"stays", None), (b"expired", 2000), (b"expires", 9000)):
            two.put(value, expiry=time or 0)
            three.put(value, expire_time=time)
    marked = [(b"", b"stays"), (b"expired=2000", b"expired"), (b"expiry=9000", b"expires")]
    for kind, export in EXPORTS.items():
        for expired, due in (("mark", marked), ("leave", [marked[0], marked[2]])):
            with sej.Writer(tmp_path / f"{kind}-{expired}") as writer:
                moved = export(tmp_path / kind, "cars", writer, expired=expired, now_ms=lambda: 5000)
            assert (moved.count, exported(tmp_path / f"{kind}-{expired}")) == (len(due), due)
    kestrel.import_(tmp_path / "back", "cars", read_all(tmp_path / "two-mark"))
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
    export = partial(kestrel.export, tmp_path / "kestrel", "cars", expired=expired)
    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            export(torn(writer, 1, after=True), now_ms=lambda: 5000)
        moved = export(writer, now_ms=lambda: 10_000, read_back=partial(sej.Scanner, tmp_path / "sej"))
    keys = [key for key, _ in exported(tmp_path / "sej")]
    assert keys == [b"expired=2000"] * (1500 if expired == "mark" else 0) + [b"expiry=9000"] * 1500
    assert moved.count == len(keys)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("calls", [0, 1, 2])
def test_an_export_that_was_cut_short_is_finished(calls: int, after: bool, kind: Any, tmp_path: Path) -> None:
    values, export = filled(tmp_path / "spool", kind=kind), EXPORTS["two" if kind is Two else "three"]
    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            export(tmp_path / "spool", "cars", torn(writer, calls, after=after))
        moved = export(tmp_path / "spool", "cars", writer, read_back=partial(sej.Scanner, tmp_path / "sej"))
    assert (moved.count, moved.first_offset) == (2501, 0)
    assert [value for _, value in exported(tmp_path / "sej")] == values


@pytest.mark.parametrize("kind", EXPORTS)
def test_whichever_call_of_an_export_fails_a_second_one_stores_nothing_twice(kind: str, tmp_path: Path) -> None:
    """The last calls follow the removal of the progress. The program does not learn whether it finished."""
    export = EXPORTS[kind]
    filled(tmp_path / "from", 5, Two if kind == "two" else Three)
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
        with pytest.raises(
            MoveError, match="wrote this queue to offset 0 and later ones, with other options"
        ) as caught:
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
    for delete in (True, False):
        queue = OPENERS[kind](spool, "cars", now_ms=lambda: now_ms)
        if delete:
            queue.delete()
        else:
            with queue:
                queue.put_many([b"a", b"b"])


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("later_ms", [0, 7])
def test_a_queue_that_was_emptied_and_filled_with_equal_items_is_exported_again(
    kind: str, later_ms: int, tmp_path: Path
) -> None:
    export, spool = EXPORTS[kind], tmp_path / "spool"
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
            kestrel.export(tmp_path / "kestrel", "cars", torn(writer, 1, after=False))
        writer.append_many([b"foreign"] * 2000)
        with pytest.raises(MoveError, match="another program wrote"):
            kestrel.export(tmp_path / "kestrel", "cars", writer)
        with kestrel.Queue(tmp_path / "kestrel", "cars") as queue:
            queue.get()
        with pytest.raises(MoveError, match="changed after an interrupted export"):
            kestrel.export(tmp_path / "kestrel", "cars", writer)


@pytest.mark.parametrize("after", [False, True])
def test_messages_of_another_program_are_not_taken_for_items(after: bool, tmp_path: Path) -> None:
    """They follow what an export that was cut short appended; fewer than a batch."""
    filled(tmp_path / "kestrel")

    def read_back(offset: int) -> list[sej.Message]:
        return read_all(tmp_path / "sej", offset=offset)

    with sej.Writer(tmp_path / "sej") as writer:
        with pytest.raises(TornError):
            kestrel.export(tmp_path / "kestrel", "cars", torn(writer, 1, after=after), read_back=read_back)
        if not after:
            writer.append_many([b"foreign"] * 600)
            with pytest.raises(MoveError, match="its 1600 messages from offset 0 on are not the items"):
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
        found = values_in("two", "/q", crash.disk)
        assert found in ([], [b"first"], due) or len(found) == 1
        if found[:1] == [b"first"]:
            kestrel.import_("/q", "cars", messages(4), disk=crash.disk, now_ms=count(1_700_000_000_000).__next__)
            assert values_in("two", "/q", crash.disk) == due
        tried += 1
    assert tried > 20


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
    for now_ms, given in ((10, timeless[:2]), (20, timeless[:2]), (30, timeless)):
        IMPORTS[kind](tmp_path, "cars", given, now_ms=lambda at=now_ms: at)
    assert [item.add_time for item in LOADS[kind](tmp_path, "cars").items] == [10, 10, 30, 30, 30]


@pytest.mark.parametrize("fault", ["eio", "sync-loses"])
@pytest.mark.parametrize("kind", IMPORTS)
def test_whichever_call_of_an_import_fails_a_second_one_adds_nothing_twice(kind: str, fault: Fault) -> None:
    """Also one that fails after it has acted. What the second one finished is on the medium."""
    due = [message.value for message in messages(2)]
    for number in count(1):
        inner = CrashDisk()
        disk = faulty(inner, number, fault)
        with suppress(FailedError):
            IMPORTS[kind]("/q", "cars", messages(2), disk=disk)
        for _ in range(2):
            IMPORTS[kind]("/q", "cars", messages(2), disk=inner)
            assert values_in(kind, "/q", inner) == values_in(kind, "/q", inner.crash()) == due, (number, disk.failed)
        if disk.failed is None:
            break
    assert number > (15 if fault == "eio" else 2)


@pytest.mark.parametrize("kind", IMPORTS)
def test_the_same_messages_are_imported_again_if_the_queue_has_changed(kind: str, tmp_path: Path) -> None:
    due = [message.value for message in messages(3)]
    IMPORTS[kind](tmp_path, "cars", messages(3))
    with OPENERS[kind](tmp_path, "cars") as queue:
        assert (queue if kind == "two" else queue.reader()).flush() == 3
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
    odd = sej.Message(0, sej.NO_TIMESTAMP, 3, b"k", b"value")
    assert kestrel.import_(tmp_path, "cars", [odd], keys="drop").count == 1
    (item,) = kestrel.replay(tmp_path, "cars").items
    assert item.data == b"value" and item.add_time

    def cut_short() -> Any:
        yield from messages(2000)
        raise TornError

    with pytest.raises(TornError):
        kestrel.import_(tmp_path, "cars", cut_short())
    assert kestrel.import_(tmp_path, "cars", messages(3)).count == 3  # nothing was added before
    assert len(kestrel.replay(tmp_path, "cars").items) == 4


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
