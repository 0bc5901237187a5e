"""What a stream does when journals vanish and are re-created: in the next batch, and in one that is planned again.

Without a session: the reader is asked as Spark asks it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

import hub
import sej
from hub.naming import Source
from hub.wire import Server
from pipeline.columns import ONE_SOURCE, arrow_schema
from pipeline.options import READ, STREAM, OptionError, parse
from pipeline.reading.remote import RemoteProgress
from pipeline.reading.stream import SejStreamReader
from pipeline.writing.places import Target, by_checkpoint
from sej.system.sealed import seal
from shard.committing import Job, finish_dead_jobs
from shard.staging import Owner, Stage
from tests.hub.support import until
from tests.pipeline.conftest import fill
from tests.ticks import next_tick

SCHEMA = from_arrow_schema(arrow_schema(ONE_SOURCE, ONE_SOURCE))
"""All columns of a journal."""

ALL = ReadAllAvailable()


def reader(root: Path, **options: str) -> SejStreamReader:
    return SejStreamReader([str(root)], parse(STREAM, options), SCHEMA)


def planned(stream: SejStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    slices = [part for partition in stream.partitions(start, end) for part in partition.value]
    return sorted((part.origin.name, part.start, part.stop) for part in slices)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for index in range(2):
        fill(tmp_path / "tree" / f"orders.1.{index:03x}", 5)
    return tmp_path / "tree"


def append(path: Path, count: int) -> None:
    """Append messages in small segments."""
    with sej.Writer(path, segment_bytes=1000) as writer:
        writer.append_many([b"x" * 20] * count)


def recreated(path: Path, _: Path) -> range:
    """Another journal, with more messages."""
    append(path, 40)
    return range(40)


def deleted(path: Path, old: Path) -> range:
    """The same journal later on, when its retention was faster than the stream."""
    shutil.copytree(old, path)
    append(path, 200)
    sej.Journal(path).clean(max_bytes=1000)
    assert sej.Journal(path).first_offset > 21
    return range(sej.Journal(path).first_offset, 220)


def truncated(path: Path, old: Path) -> range:
    """The same journal with fewer messages, as after a disk was restored."""
    shutil.copytree(old, path)
    last = sorted((path / "jnl").iterdir())[-1]
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size // 2)
    return range(0)


LOSSES = [
    (recreated, "re-created"),
    (deleted, "were deleted before the stream read them"),
    (truncated, "was truncated or"),
]


@pytest.mark.parametrize(("become", "says"), LOSSES)
def test_loss_between_two_batches(tmp_path: Path, become: Callable[[Path, Path], range], says: str) -> None:
    new, place = tmp_path / "new", tmp_path / "tree" / "orders.1.000"
    append(place, 20)
    strict, lenient = reader(place.parent), reader(place.parent, failOnDataLoss="false")
    start = strict.latestOffset(strict.initialOffset(), ALL)
    assert lenient.latestOffset(lenient.initialOffset(), ALL) == start
    left = become(new, place)
    place.rename(tmp_path / "old")
    new.rename(place)
    with pytest.raises(sej.SejError, match=says):
        strict.latestOffset(start, ALL)
    end = lenient.latestOffset(start, ALL)
    assert planned(lenient, start, end) == ([(place.name, left.start, left.stop)] if left else [])
    append(place, 30)  # a truncated one continues with what is appended from now on
    last = int(end[place.name]["offset"])
    assert planned(lenient, end, lenient.latestOffset(end, ALL)) == [(place.name, last, last + 30)]


def test_a_batch_that_is_planned_again_needs_its_directories(tree: Path, tmp_path: Path) -> None:
    """Otherwise a disk that is missing for a moment would be left out of every later batch."""
    first = reader(tree)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    shutil.move(tree / "orders.1.001", tmp_path / "away")
    with pytest.raises(sej.JournalNotFoundError, match=r"'orders\.1\.001', which was removed"):
        reader(tree).partitions(start, end)
    assert planned(reader(tree, failOnDataLoss="false"), start, end) == [("orders.1.000", 0, 5)]
    shutil.move(tmp_path / "away", tree / "orders.1.001")
    assert planned(reader(tree), start, end) == [("orders.1.000", 0, 5), ("orders.1.001", 0, 5)]


@pytest.mark.parametrize("new", [False, True])
def test_a_batch_that_is_planned_again_takes_only_its_journals_messages(tree: Path, new: bool) -> None:
    first = reader(tree)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    if new:  # the directory appeared in this batch
        del start["orders.1.001"]
    shutil.rmtree(tree / "orders.1.001")
    fill(tree / "orders.1.001", 9)
    with pytest.raises(sej.OffsetBeyondEndError, match="re-created"):
        reader(tree).partitions(start, end)
    again = reader(tree, failOnDataLoss="false")
    assert planned(again, start, end) == [("orders.1.000", 0, 5)]
    assert planned(again, end, again.latestOffset(end, ALL)) == [("orders.1.001", 0, 9)]


def test_progress_is_kept_in_a_recreated_journal(tree: Path) -> None:
    stream = reader(tree, failOnDataLoss="false", reader="me")
    stream.prepareForTriggerAvailableNow()  # so that progress is kept before an answer is given
    stream._target = {"orders.1.000": 100, "orders.1.001": 100}
    try:
        end = stream.latestOffset(stream.initialOffset(), ALL)
        stream.latestOffset(end, ALL)
        assert sej.read_offset(tree / "orders.1.000", "me") == 5
        shutil.rmtree(tree / "orders.1.000")
        for count in (3, 5, 20):  # fewer messages than were read of the old one, then more
            fill(tree / "orders.1.000", count)
            end = stream.latestOffset(end, ALL)
            stream.latestOffset(end, ALL)
            assert sej.read_offset(tree / "orders.1.000", "me") == end["orders.1.000"]["offset"]
        assert sej.read_offset(tree / "orders.1.001", "me") == 5
        assert end["orders.1.000"]["offset"] == 28
    finally:
        stream.stop()


def test_a_reader_on_a_hub_continues_without_a_journal_that_was_removed(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.reading.remote._LEASE_S", 0.5)
    monkeypatch.setattr("pipeline.reading.remote._LOOK_S", 0.0)
    root = tmp_path / "hub"
    paths = [root / "berlin.orders.1.000", root / "berlin.orders.1.001"]
    for path in paths:
        fill(path, 5)
    with hub.Store(root) as store, Server(store, "127.0.0.1:0") as server:
        options = parse(STREAM, {"hub": server.address, "reader": "me", "failOnDataLoss": "false"})
        stream = SejStreamReader(["berlin.orders.1"], options, SCHEMA)
        try:
            end = stream.latestOffset(stream.initialOffset(), ALL)
            stream.latestOffset(end, ALL)
            assert [sej.read_offset(path, "me") for path in paths] == [5, 5]
            shutil.rmtree(paths[0])
            assert isinstance(stream._progress, RemoteProgress)
            held = stream._progress._held
            until(lambda: not held.holds(Source("berlin", "orders.1.000")))  # a renewal of the lease has failed
            store.put("berlin", "orders.1.001", [sej.Message(5, 1, 0, b"", b"new")])
            end = stream.latestOffset(end, ALL)
            stream.latestOffset(end, ALL)
            assert sej.read_offset(paths[1], "me") == 6
            for count in (2, 5):  # re-created: the renewal notices the first, a commit the second
                shutil.rmtree(paths[0], ignore_errors=True)
                fill(paths[0], count)
                end = stream.latestOffset(end, ALL)
                stream.latestOffset(end, ALL)
                assert end["berlin.orders.1.000"]["offset"] == count
                assert sej.read_offset(paths[0], "me") == count
        finally:
            stream.stop()


@pytest.mark.parametrize("single", [False, True])
def test_a_stream_that_need_not_fail_continues_whatever_is_left_of_a_journal(tree: Path, single: bool) -> None:
    one = tree / "orders.1.000"
    stream = reader(one if single else tree, failOnDataLoss="false")
    strict = reader(one if single else tree)
    end = stream.latestOffset(stream.initialOffset(), ALL)
    assert strict.latestOffset(strict.initialOffset(), ALL) == end
    for remove in (one / "jnl", one):
        shutil.rmtree(remove)
        assert stream.latestOffset(end, ALL) == end
        with pytest.raises((sej.JournalNotFoundError, sej.NotAJournalError)):
            strict.latestOffset(end, ALL)
    next_tick(tree)
    fill(one, 2)
    assert planned(stream, end, stream.latestOffset(end, ALL)) == [("orders.1.000", 0, 2)]


def test_a_stream_never_begins_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(sej.JournalNotFoundError):
        reader(tmp_path / "missing", failOnDataLoss="false").initialOffset()


def test_batches_are_counted_by_the_query_and_not_by_a_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(folder: Path) -> set[str]:
        monkeypatch.chdir(folder)
        return {by_checkpoint(name) for name in ("checkpoint", "./checkpoint/", f"file:{folder}/checkpoint")}

    folders = [tmp_path / "a", tmp_path / "b"]
    for number, folder in enumerate(folders):
        (folder / "checkpoint").mkdir(parents=True)
        assert len(names(folder)) == 1
        (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": f"query {number}"}))
    first, second = (names(folder) for folder in folders)
    assert len(first) == len(second) == 1
    assert first != second
    shutil.move(folders[0], tmp_path / "moved")
    assert names(tmp_path / "moved") == first
    (tmp_path / "moved" / "checkpoint" / "metadata").write_text(json.dumps({"id": "begun anew"}))
    assert names(tmp_path / "moved") != first
    assert by_checkpoint("hdfs://host/checkpoint") == by_checkpoint("hdfs://host/checkpoint/")


@pytest.mark.parametrize("late", [0, 3])
def test_what_came_before_a_dead_job_is_finished_is_not_overwritten(tmp_path: Path, late: int) -> None:
    """The job had replaced what it had read: it was decided, and then its driver died."""
    fill(tmp_path / "j", 10)
    target = Target(str(tmp_path / "j"), None, None)
    stage = Stage(target.staging, "dead", Owner.here())
    stage.append(0, [b"new"], [b"k"], 0, 1)
    job = Job("dead", "compact", 1, stage.finish(), True, (), {"j": 10})
    decision = {"prefix": None, "bits": None, **job._asdict()}
    Path(target.staging, "job-dead.json").write_bytes(seal("job-dead.json", decision))
    fill(tmp_path / "j", late, first=100)
    finish_dead_jobs(target)
    with sej.Scanner(tmp_path / "j") as scanner:
        found = [message.value for message in scanner]
    assert found[-1] == b"new"
    assert len(found) == (1 if not late else 10 + late + 1)


@pytest.mark.parametrize("given", ["earliest", '{"orders.1.000": -2}'])
def test_reading_does_not_end_at_the_earliest_message(given: str) -> None:
    with pytest.raises(OptionError, match=r"endingOffsets must be latest or JSON .*nothing would be read"):
        parse(READ, {"endingOffsets": given})
