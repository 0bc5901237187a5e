"""Messages larger than every window among short ones: division at index points, and batches. No Spark."""

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sej
from pipeline.reading.discovery import Origin, Slice
from pipeline.reading.extents import Extent
from pipeline.reading.planning import pack
from pipeline.reading.task import TaskOptions, read
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
                    for batch in read([part], SCHEMA, TaskOptions(verify=dice.random() < 0.5, chunk_bytes=READ_BYTES)):
                        found[part.origin.name] += zip(*(column.to_pylist() for column in batch.columns), strict=True)
                rows_together = sum(
                    batch.num_rows for batch in read(partition, SCHEMA, TaskOptions(chunk_bytes=READ_BYTES))
                )
                assert rows_together == sum(part.stop - part.start for part in partition)
            assert found == expected


def test_a_journal_that_is_recreated_within_a_slice_is_an_error(tmp_path: Path) -> None:
    def create(tag: bytes) -> None:
        with sej.Writer(tmp_path / "j") as w:
            w.append_many([tag * 50 for _ in range(5000)])

    create(b"old")
    part = Extent(Origin(str(tmp_path / "j"), "j")).slice(0, 5000)
    batches = read([part], SCHEMA, TaskOptions(chunk_bytes=1 << 16), batch_rows=1)
    found = [next(batches)]
    shutil.rmtree(tmp_path / "j")
    create(b"new")
    with pytest.raises(sej.TruncatedError, match="removed or re-created while it was read"):
        found.extend(batches)
    assert 1 < len(found) < 16
    assert {value.as_py() for batch in found for value in batch["value"]} == {b"old" * 50}
