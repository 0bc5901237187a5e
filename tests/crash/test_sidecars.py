"""A broken sidecar causes a documented error or nothing: the data is right, and time and memory are bounded."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hub.merge import read_vector
from kestrel.transfer import plan_at
from pipeline.writing.on_file import _ledger, _load
from sej.errors import SejError
from sej.journal.directory import Directory, journal_id, read_gaps
from sej.journal.index import IndexFile
from sej.journal.offset_check import read_kept
from sej.journal.writer_lock import Fence
from sej.reading.attempts import Attempts
from sej.system.disk import OS
from sej.system.sealed import SealedFile
from sej.writing.exactly_once import Batches
from shard import Path as ShardPath
from shard.records import read_record
from shard.resharding import load_plan
from tests.crash.harness import SAME_OR_LONG, bounded, dice_of_cases
from tests.crash.sidecars import (
    WORLDS,
    Hubs,
    Jobs,
    Journal,
    Kestrels,
    Pending,
    Queues,
    Shards,
    Texts,
    World,
    break_bytes,
    change,
    limited,
    put,
)
from textqueue.sidecar import read_intent

SAMPLE = 20
QUICK = 100
MEMORY_BYTES = 1 << 30


def case(world: World, path: Path, dice: random.Random) -> None:
    world.restore(path)
    how, changed = change(world, path, dice)
    try:
        with limited():
            world.check(path, changed)
    except BaseException as error:
        raise AssertionError(f"{how} of {changed}: {type(error).__name__}: {error}") from error
    shutil.rmtree(path)


@pytest.mark.parametrize("kind", WORLDS)
def test_a_world_is_sound_before_it_is_broken(kind: type[World], tmp_path: Path) -> None:
    world = kind(tmp_path / "built")
    world.restore(tmp_path / "case")
    changed = world.sidecars(tmp_path / "case")  # what is checked of each, with none of them changed
    world.check(tmp_path / "case", [name for name in changed if not name.endswith((".queue", ".log"))])


@SAME_OR_LONG
@pytest.mark.parametrize("kind", WORLDS)
def test_a_broken_sidecar_gives_no_wrong_data(kind: type[World], tmp_path: Path, brief_s: float, *, long: bool) -> None:
    world, cases = kind(tmp_path / "built"), dice_of_cases(SAMPLE, brief_s, long=long)

    def work() -> None:
        for dice in cases:
            case(world, tmp_path / "case", dice)

    ended = bounded(work, MEMORY_BYTES, more_s=60 + brief_s)
    assert not ended.kinds, ended.text


class Reader(NamedTuple):
    """What reads one kind of file, in which world; fine: what may be read instead of what was written."""

    world: type[World]
    file: str
    read: Callable[[Path], Any]
    fine: Callable[[Any, Any], bool] = lambda found, sound: found == sound


def _at(path: Path, name: str = "j") -> Directory:
    return Directory(path / name, OS)


def _identity(path: Path) -> bytes | None:
    if (path / "j" / "id").stat().st_size == 16:
        raise SejError("of an older version, which has no checksum")
    return journal_id(_at(path))


def _index(path: Path) -> list[Any]:
    directory = _at(path)
    segment = directory.segments()[0]
    file, index = OS.open(segment.path, "read"), IndexFile(directory, segment)
    try:
        return [
            *index.load(file).blocks,
            *(block for block, _ in index.changed_blocks(file)),
            *index.load_end(file)[1].blocks,
            index.find(file, "next_offset", 1),
        ]
    finally:
        file.close()


def _job(path: Path) -> Any:
    (file,) = (path / "t" / ".staging").glob("job-*.json")
    return _sealed(file)


def _sealed(file: Path) -> Any:
    return SealedFile(OS, str(file), "readable", "remove it").load()


READERS = [
    Reader(Journal, "j/gaps/*.gap", lambda path: read_gaps(_at(path))),
    Reader(Journal, "j/ofs/reader.ofs", lambda path: read_kept(_at(path), "reader")),
    Reader(Journal, "j/ofs/reader.check", lambda path: read_kept(_at(path), "reader")),
    Reader(
        Journal,
        "j/ofs/worker.tries",
        lambda path: Attempts(_at(path), "worker", 99).begin(33, 0),
        lambda found, sound: found in range(sound + 1),
    ),
    Reader(Journal, "j/txn/one.done", lambda path: Batches(_at(path)).find("one", 1)),
    Reader(Journal, "j/id", _identity),
    Reader(Journal, "j/ofs/.limits", lambda path: _sealed(path / "j" / "ofs" / ".limits")),
    Reader(Journal, "j/token", lambda path: Fence(_at(path), 0)._load()),
    Reader(Journal, "j/idx/*.idx", _index, lambda found, sound: {*found} <= {*sound, None}),
    Reader(Pending, "batch/txn/load.intent", lambda path: _sealed(path / "batch" / "txn" / "load.intent")),
    Reader(Queues, "j/ofs/jobs.ofs", lambda path: read_kept(_at(path), "jobs")),
    Reader(Queues, "j/ofs/jobs.check", lambda path: read_kept(_at(path), "jobs")),
    Reader(Hubs, "hub/.merge/r.json", lambda path: read_vector(str(path / "hub"), "r", OS)),
    Reader(
        Shards,
        "t/.shards/o.2",
        lambda path: read_record(ShardPath(path / "t", "o", 2)),
        lambda found, sound: found == sound or bool(found.damaged) or found.shards < sound.shards,  # lines may be lost
    ),
    Reader(Shards, "t/.reshard/n.1/plan.json", lambda path: load_plan(ShardPath(path / "t", "n", 1), OS)),
    Reader(Texts, ".drain.tq.drain", lambda path: read_intent(OS, str(path / ".drain.tq.drain"))),
    Reader(Texts, ".spark.tq.spark", lambda path: _load(_ledger(str(path / ".spark.tq.spark")))),
    Reader(Kestrels, "to/cars.exported", lambda path: plan_at(str(path / "to" / "cars.exported"), OS).load()),
    Reader(Kestrels, "back/kept/cars.imported", lambda path: plan_at(str(path / "back/kept/cars.imported"), OS).load()),
    Reader(Jobs, "t/.staging/job-*.json", _job),
    Reader(Jobs, "t/.staging/done.json", lambda path: _sealed(path / "t" / ".staging" / "done.json")),
]


def read_broken(reader: Reader, path: Path, cases: Iterator[random.Random]) -> None:
    """Break one file again and again, in place, as a medium does."""
    file = sorted(path.glob(reader.file))[0]
    whole = file.read_bytes()
    sound = reader.read(path)
    for dice in cases:
        how, data = break_bytes(bytearray(whole), dice)
        put(file, data)
        try:
            with limited():
                found = reader.read(path)
        except SejError:
            continue
        except BaseException as error:
            raise AssertionError(f"{how} of {file}: {type(error).__name__}: {error}: {bytes(data)!r}") from error
        assert reader.fine(found, sound), (how, found, sound, bytes(data))
    put(file, whole)
    assert reader.read(path) == sound


@SAME_OR_LONG
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.file)
def test_a_reader_of_a_broken_sidecar_raises_or_reads_right(
    reader: Reader, tmp_path: Path, brief_s: float, *, long: bool
) -> None:
    """Alone, because most of what is broken is seen by the first look."""
    reader.world(tmp_path / "world")
    cases = dice_of_cases(QUICK, brief_s, long=long)
    ended = bounded(lambda: read_broken(reader, tmp_path / "world", cases), MEMORY_BYTES, more_s=60 + brief_s)
    assert not ended.kinds, ended.text
