"""Plans, without Spark: how far a micro-batch goes, how slices are divided, and what is read of them."""

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sej
from pipeline.reading.discovery import Origin, Slice, Way
from pipeline.reading.extents import Extent
from pipeline.reading.planning import by_bytes, by_messages, pack, partition_count
from pipeline.reading.task import read
from sej.writing.shared_writer import SharedWriter
from tests.sej.windows import BLOCK_BYTES, READ_BYTES, shrunk, small_windows

WINDOWS = {
    "pipeline.reading.planning": ["PARTITION_BYTES_MIN", "PARTITION_BYTES_MAX"],
    "pipeline.reading.task": ["BATCH_ROWS", "BATCH_BYTES", "_CHUNK_BYTES_MIN"],
}
SCHEMA = pa.schema([("offset", pa.int64()), ("key", pa.binary()), ("value", pa.binary())])
Row = tuple[int, bytes, bytes]


def fill(path: Path, dice: random.Random) -> list[Row]:
    """A journal with messages of any size, and an index that is there, or cut, or gone, and perhaps a torn tail."""
    kind: Any = dice.choice([sej.Writer, SharedWriter])
    rows = []
    with kind(path, segment_bytes=dice.choice([3000, 20_000, 1 << 30])) as w:
        for n in range(dice.randrange(1, 60)):
            large = dice.choice([200, BLOCK_BYTES - 30, BLOCK_BYTES, READ_BYTES, dice.randrange(5 * READ_BYTES)])
            rows.append((n, b"k%d" % n, bytes([n]) * (large if dice.random() < 0.4 else dice.randrange(30))))
            w.append(rows[-1][2], rows[-1][1])
    for file in sorted((path / "idx").glob("*")):
        match dice.choice(["whole", "whole", "gone", "cut"]):
            case "gone":
                file.unlink()
            case "cut":
                file.write_bytes(file.read_bytes()[: dice.randrange(file.stat().st_size + 1)])
    if dice.random() < 0.3:
        with open(max((path / "jnl").iterdir()), "ab") as last:
            last.write(bytes(dice.choice([3, 400, 20_000])))
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_partitions_hold_every_message_once(seed: int, tmp_path: Path) -> None:
    """Messages larger than every window are among short ones."""
    dice = random.Random(seed)
    with small_windows(), shrunk(WINDOWS):
        extents: dict[str, Extent] = {}
        expected: dict[str, list[Row]] = {}
        slices: list[Slice] = []
        for name in "ab":
            rows = fill(tmp_path / name, dice)
            extents[name] = Extent(Origin(str(tmp_path / name), name))
            assert extents[name].end == len(rows)
            start = dice.randrange(len(rows))
            stop = dice.randrange(start, len(rows)) + 1
            slices.append(extents[name].slice(start, stop))
            expected[name] = rows[start:stop]
        for at_least in (None, 3, 20):
            partitions = pack(slices, extents, at_least=at_least, at_once=dice.choice([1, 2, 8]))
            found: dict[str, list[Row]] = {name: [] for name in expected}
            for partition in partitions:
                for part in partition:
                    for batch in read([part], SCHEMA, Way(verify=dice.random() < 0.5, chunk_bytes=READ_BYTES)):
                        found[part.origin.name] += zip(*(column.to_pylist() for column in batch.columns), strict=True)
                rows_together = sum(batch.num_rows for batch in read(partition, SCHEMA, Way(chunk_bytes=READ_BYTES)))
                assert rows_together == sum(part.stop - part.start for part in partition)
            assert found == expected


def test_a_journal_that_is_recreated_within_a_slice_is_an_error(tmp_path: Path) -> None:
    def create(tag: bytes) -> None:
        with sej.Writer(tmp_path / "j") as w:
            w.append_many([tag * 50 for _ in range(5000)])

    create(b"old")
    part = Extent(Origin(str(tmp_path / "j"), "j")).slice(0, 5000)
    batches = read([part], SCHEMA, Way(chunk_bytes=1 << 16), batch_rows=1)
    found = [next(batches)]
    shutil.rmtree(tmp_path / "j")
    create(b"new")
    with pytest.raises(sej.TruncatedError, match="removed or re-created while it was read"):
        found.extend(batches)
    assert len(found) < 16
    assert {value.as_py() for batch in found for value in batch["value"]} == {b"old" * 50}


@pytest.mark.parametrize(
    ("mib", "least", "most", "count"),
    [(0, None, None, 1), (1, None, None, 1), (3, None, None, 3), (1024, None, None, 4), (1025, None, None, 8),
     (9000, None, None, 36), (9000, 50, None, 50), (9000, None, 7, 7), (0, 5, 2, 2)],
)  # fmt: skip
def test_partitions_are_a_multiple_of_the_cores(mib: int, least: int | None, most: int | None, count: int) -> None:
    assert partition_count(mib << 20, least, most, 4) == count


WAITING = st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.integers(0, 50), st.integers(0, 100)), min_size=1)


@given(WAITING, st.integers(1, 300))
def test_as_many_messages_as_the_limit_says(rows: dict[str, tuple[int, int]], limit: int) -> None:
    starts = {name: start for name, (start, _) in rows.items()}
    ends = {name: start + count for name, (start, count) in rows.items()}
    found = by_messages(starts, ends, limit)
    assert all(starts[name] <= found[name] <= ends[name] for name in rows)
    assert sum(found.values()) - sum(starts.values()) == min(limit, sum(ends.values()) - sum(starts.values()))


@given(WAITING, st.integers(1, 300), st.lists(st.integers(1, 400), min_size=8, max_size=8))
def test_bytes_stay_below_the_limit_or_one_message_comes_alone(
    rows: dict[str, tuple[int, int]], limit: int, sizes: list[int]
) -> None:
    starts = {name: start for name, (start, _) in rows.items()}
    ends = {name: start + count for name, (start, count) in rows.items()}
    size = dict(zip("abcdefgh", sizes, strict=True))
    found = by_bytes(starts, ends, limit, {name: size[name] * (ends[name] - starts[name]) for name in rows})
    assert found.keys() == rows.keys()
    assert all(starts[name] <= found[name] <= ends[name] for name in rows)
    count = sum(found.values()) - sum(starts.values())
    assert count >= 1 or starts == ends
    assert count <= 1 or sum(size[name] * (found[name] - starts[name]) for name in rows) <= limit


def test_a_small_backlog_is_not_starved_by_endless_ones() -> None:
    starts = dict.fromkeys("abc", 0)
    batches = 0
    while not starts["c"]:
        starts = by_messages(starts, {"a": starts["a"] + 1000, "b": starts["b"] + 1000, "c": 1}, 2)
        batches += 1
        assert batches < 100
    starts = dict.fromkeys("abc", 0)
    while not starts["c"]:
        ends = {"a": starts["a"] + 1000, "b": starts["b"] + 1000, "c": 1}
        waiting = {name: (100 if name != "c" else 9000) * (ends[name] - starts[name]) for name in ends}
        starts = by_bytes(starts, ends, 500, waiting)
        batches += 1
        assert batches < 100
