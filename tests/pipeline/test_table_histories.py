"""Tables, scanners and Spark's readers agree over random histories: rotation, damage, torn tails, gaps."""

import contextlib
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import pipeline
import sej
from pipeline.options import READ, parse
from pipeline.reading.stream import SejReader
from pipeline.tables import table as tables
from tests.pipeline.conftest import BASE_NS
from tests.pipeline.test_losses import SCHEMA

Row = tuple[int, int, int, bytes, bytes]
WRONG = (sej.CorruptionError, sej.OffsetGapError, sej.OffsetTooSmallError, sej.TruncatedError)

messages = st.tuples(
    st.binary(max_size=3), st.binary(max_size=60), st.integers(0, 255), st.integers(0, 60) | st.just(-1)
)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(messages, min_size=1, max_size=12)),
    st.tuples(st.just("reindex"), st.none()),
    st.tuples(st.just("clean"), st.integers(1, 3000)),
    st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True)),
    st.tuples(st.just("zero"), st.floats(0, 1, exclude_max=True)),
    st.tuples(st.just("cut"), st.integers(1, 30)),
    st.tuples(st.just("repair"), st.none()),
)


def carry_out(path: Path, step: str, given: Any) -> None:
    """Change a journal; what a damaged one refuses is left out."""
    segments = sorted((path / "jnl").iterdir()) if (path / "jnl").exists() else []
    sizes: list[int] = [segment.stat().st_size for segment in segments]
    total = sum(sizes)
    if step in ("flip", "zero") and total:
        at = int(given * total)
        for segment, size in zip(segments, sizes, strict=True):
            if at < size:
                data = bytearray(segment.read_bytes())
                data[at : at + (1 if step == "flip" else 30)] = (
                    [data[at] ^ 64] if step == "flip" else bytes(len(data[at : at + 30]))
                )
                segment.write_bytes(data)
                return
            at -= size
    elif step == "cut" and segments:
        segments[-1].write_bytes(segments[-1].read_bytes()[:-given])
    elif step == "append":
        with contextlib.suppress(*WRONG), sej.Writer(path, segment_bytes=400) as writer:
            keys, values, types, times = zip(*given, strict=True)
            stamps = [sej.NO_TIMESTAMP if time < 0 else BASE_NS + time for time in times]
            writer.append_many(values, keys, types, stamps)
    elif segments and step in ("reindex", "clean", "repair"):
        journal = sej.Journal(path)
        calls: dict[str, Callable[[], object]] = {
            "reindex": journal.reindex,
            "clean": lambda: journal.clean(max_bytes=given),
            "repair": journal.repair,
        }
        with contextlib.suppress(*WRONG):
            calls[step]()


def scanned(path: Path, **options: Any) -> list[Row] | None:
    """The rows of a scanner; None if it raises."""
    try:
        with sej.Scanner(path, **options) as scanner:
            return [(m.offset, m.timestamp, m.type, m.key, m.value) for m in scanner]
    except WRONG:
        return None


def tabled(path: Path, **options: Any) -> list[Row] | None:
    """The rows of a table; None if it raises."""
    try:
        table = pipeline.table(path, **options)
        found = table.to_arrow()
        if options.get("verify") is False or options.get("on_corruption") == "skip":
            assert table.count() == found.num_rows
    except WRONG:
        return None
    return rows_of(found)


def sparked(path: Path, *, verify: bool, on_corruption: str = "raise") -> list[Row] | None:
    """The rows of the object that Spark's driver and tasks call, in several partitions; None if it raises."""
    given = {"verify": str(verify).lower(), "onCorruption": on_corruption, "minPartitions": "3"}
    reader = SejReader([str(path)], parse(READ, given), SCHEMA)
    try:
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    except WRONG:
        return None
    return rows_of(pa.Table.from_batches(batches)) if batches else []


def rows_of(found: pa.Table) -> list[Row]:
    names = ("offset", "timestamp_ns", "type", "key", "value")
    return list(zip(*(found[name].to_pylist() for name in names), strict=True))


bounds = st.fixed_dictionaries(
    {},
    optional={
        "end": st.integers(0, 40) | st.integers(0, 60).map(lambda n: f"ns {n}"),
        "start": st.integers(0, 60).map(lambda n: f"ns {n}"),
        "where": st.sampled_from(
            ["offset < 12 AND type > 9", f"timestamp_ns <= {BASE_NS + 20} AND offset BETWEEN 2 AND 20", "key = 'a'"]
        ),
    },
)  # fmt: skip
TESTS: dict[str, Callable[[Row], bool]] = {
    "offset < 12 AND type > 9": lambda row: row[0] < 12 and row[2] > 9,
    "key = 'a'": lambda row: row[3] == b"a",
    f"timestamp_ns <= {BASE_NS + 20} AND offset BETWEEN 2 AND 20": lambda row: (
        row[1] <= BASE_NS + 20 and 2 <= row[0] <= 20
    ),
}


def chosen(rows: list[Row], given: dict[str, Any]) -> list[Row]:
    """The rows that the arguments select, without an index."""
    found = [row for row in rows if TESTS[given["where"]](row)] if "where" in given else rows
    for name in ("start", "end"):
        place = given.get(name)
        if place is not None:
            least = int(place.removeprefix("ns ")) if isinstance(place, str) else place
            found = [
                row
                for row in found
                if ((row[1] - BASE_NS if isinstance(place, str) else row[0]) >= least) == (name == "start")
            ]
    return found


def moment(place: Any) -> Any:
    """A place as the argument: times to the nanosecond as text."""
    if not isinstance(place, str):
        return place
    whole = datetime.fromtimestamp(BASE_NS // 10**9, UTC) + timedelta(0)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{int(place.removeprefix('ns ')):09d}Z"


@given(history=st.lists(steps, min_size=1, max_size=10), given=bounds, verify=st.booleans())
def test_a_table_is_what_a_scanner_reads(history: list[tuple[str, Any]], given: dict[str, Any], verify: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(tables, "_PART_BYTES", 500):
        path = Path(folder) / "j"
        sej.Writer(path, segment_bytes=400).close()
        for step, argument in history:
            carry_out(path, step, argument)
        skipped = scanned(path, on_corruption="skip", verify=verify)
        assert tabled(path, on_corruption="skip", verify=verify) == skipped
        assert sparked(path, on_corruption="skip", verify=verify) == skipped
        strict = scanned(path, verify=verify)
        assert tabled(path, verify=verify) == strict
        assert sparked(path, verify=verify) == strict
        if skipped is None:
            return
        arguments = {name: moment(place) if name != "where" else place for name, place in given.items()}
        assert tabled(path, on_corruption="skip", verify=verify, **arguments) == chosen(skipped, given)
        some = tabled(path, verify=verify, **arguments)
        if strict is not None or some is not None:
            assert some == chosen(skipped if strict is None else strict, given)


@pytest.mark.spark
def test_spark_reads_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    history: list[tuple[str, Any]] = [
        *(("append", [(b"k%d" % n, b"v" * n, n, n) for n in range(12)]) for _ in range(5)),
        ("zero", 0.4), ("repair", None), ("append", [(b"", b"last", 0, -1)]), ("zero", 0.1), ("cut", 3),
    ]  # fmt: skip
    for step, argument in history:
        carry_out(tmp_path / "j", step, argument)
    frame = spark.read.format("sej").option("onCorruption", "skip").load(str(tmp_path / "j"))
    wanted = tabled(tmp_path / "j", on_corruption="skip", verify=False)
    assert wanted and len(wanted) < 61
    assert rows_of(frame.toArrow().sort_by("offset")) == wanted
