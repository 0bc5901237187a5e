"""``sej ship``: kill it anywhere, and the counts agree."""

import os
import resource
import shutil
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

import hub
import sej
from hub.wire import Server
from pipeline.tables.output import format_of, write_file
from pipeline.tables.shipping import DeltaTarget, ParquetTarget, default_reader
from pipeline.tables.shipping import ship as run_ship
from pipeline.tables.stream import Stream
from sej.system.locks import Lock
from tests.cli import command
from tests.cli.inside import Done, inside
from tests.forking import Forkserver
from tests.pipeline.conftest import fill
from tests.pipeline.dying import DIED

KINDS = ("parquet", "delta", "iceberg")
Ship = Callable[..., Done]


@cache
def _forkserver() -> Forkserver:
    """One for all programs that die: most of their time would be imports."""
    modules = (
        "sej.cli",
        "pipeline.tables.commands",
        "pipeline.tables.shipping",
        "pyarrow.parquet",
        "deltalake",
        "pyiceberg.catalog.sql",
    )
    return Forkserver(*modules, env=command.ENV)


def die(point: tuple[str, str, str], *words: str | Path) -> None:
    """Run ``sej WORDS``, which dies at the first call of a function: its module, its name, and "before" or "after"."""
    died = _forkserver().run(["tests.pipeline.dying", *point, *map(str, words)], stdin=b"")
    assert died.returncode == DIED, died.stderr


@pytest.fixture
def ship(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ship:
    monkeypatch.chdir(tmp_path)
    return lambda *words: inside(monkeypatch, "ship", *words)


def shipped(kind: str, where: str = "out") -> list[tuple[Any, ...]]:
    """The shard, offset and value of each row, sorted."""
    if kind == "parquet":
        rows = [row for path in sorted(Path(where).glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]
    elif kind == "iceberg":
        with closing(SqlCatalog("sej", uri=f"sqlite:///{where}/catalog.db")) as catalog:
            rows = catalog.load_table("sej.messages").scan().to_arrow().to_pylist()
    else:
        table = DeltaTable(where)
        rows = [row for path in table.file_uris() for row in pq.read_table(path).to_pylist()]
    return sorted((row["shard"] or 0, row["offset"], row["value"]) for row in rows)


def there(root: Path) -> list[tuple[Any, ...]]:
    import pipeline

    rows = pipeline.table(root, columns=["shard", "offset", "value"]).to_arrow().to_pylist()
    return sorted((row["shard"] or 0, row["offset"], row["value"]) for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_adds_what_is_new(ship: Ship, shards: Path, kind: str) -> None:
    for appended, added in ((0, 100), (3, 3), (0, 0), (5, 5)):
        if appended:
            fill(shards / "orders.2.001", appended, first=sej.Journal(shards / "orders.2.001").end_offset)
        done = ship(shards, f"{kind}:out")
        assert (done.code, done.out, done.err) == (0, b"", f"{added} rows added to {kind}:out\n")
        assert shipped(kind) == there(shards)
    reader = default_reader(f"{kind}:out")
    assert sej.read_offset(shards / "orders.2.001", reader) == 28


def test_polars_reads_an_iceberg_table(
    ship: Ship, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # else it warns that another package plans faster
    assert ship(shards, "iceberg:out").code == 0
    fill(shards / "orders.2.001", 3, first=sej.Journal(shards / "orders.2.001").end_offset)
    assert ship(shards, "iceberg:out").code == 0
    newest = max(tmp_path.glob("out/**/*.metadata.json"))
    columns = ["shard", "offset", "value"]
    for table in (newest.as_uri(), StaticTable.from_metadata(str(newest))):
        scan = polars.scan_iceberg(table).select(columns)
        for rows, least in ((scan, 0), (scan.filter(polars.col("offset") >= 20), 20)):
            found = sorted((row["shard"] or 0, row["offset"], row["value"]) for row in rows.collect().to_dicts())
            assert found == [row for row in there(shards) if row[1] >= least]


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_journal_makes_a_table_with_its_columns(ship: Ship, tmp_path: Path, kind: str) -> None:
    sej.Writer(tmp_path / "orders").close()
    for _ in range(2):
        assert ship("orders", f"{kind}:out", "--columns", "offset,value").err == f"0 rows added to {kind}:out\n"
    if kind == "delta":
        assert [field.name for field in DeltaTable("out").schema().fields] == ["offset", "value"]
    elif kind == "parquet":
        assert pq.read_schema("out/part-000000000000.parquet").names == ["offset", "value"]
        assert len(list(Path("out").glob("*.parquet"))) == 1
    else:
        assert shipped(kind) == []
    fill(tmp_path / "orders", 2)
    assert ship("orders", f"{kind}:out", "--columns", "offset,value").err == f"2 rows added to {kind}:out\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_that_was_recreated_is_shipped_from_its_first_message(ship: Ship, journal: Path, kind: str) -> None:
    assert ship(journal, f"{kind}:out").code == 0
    shutil.rmtree(journal)
    fill(journal, 3, tag="again")
    assert ship(journal, f"{kind}:out").err == f"3 rows added to {kind}:out\n"
    assert len(shipped(kind)) == 103


@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_that_got_its_identity_later_is_the_same(
    ship: Ship, journal: Path, tmp_path: Path, kind: str
) -> None:
    """The first writer of SEJ gives a journal of the original its identity."""
    (journal / "id").unlink()
    assert ship(journal, f"{kind}:out").code == 0
    end = sej.Journal(journal).end_offset
    (journal / "id").unlink(missing_ok=True)
    fill(journal, 5, first=end)
    (journal / "id").unlink()
    die(("pipeline.tables.stream", "Stream.commit", "before"), "ship", journal, f"{kind}:out")
    fill(journal, 2, first=end + 5)
    assert (journal / "id").exists()
    assert ship(journal, f"{kind}:out").err == f"2 rows added to {kind}:out\n"
    assert shipped(kind) == there(journal)


class KilledError(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("identified", [False, True])
def test_a_first_run_is_recognised_without_an_identity(
    ship: Ship, journal: Path, monkeypatch: pytest.MonkeyPatch, identified: bool
) -> None:
    (journal / "id").unlink()

    def killed(*_: object) -> None:
        raise KilledError

    with monkeypatch.context() as patched:
        patched.setattr(Stream, "commit", killed)
        with pytest.raises(KilledError):
            ship(journal, "parquet:out", "--start", "10")
    if identified:
        sej.Writer(journal).close()
        assert (journal / "id").exists()
    assert ship(journal, "parquet:out", "--start", "10").err == "0 rows added to parquet:out\n"
    assert shipped("parquet") == there(journal)[10:]


@pytest.mark.parametrize("kind", KINDS)
def test_journals_of_one_name_without_an_identity_are_not_taken_for_each_other(
    ship: Ship, tmp_path: Path, kind: str
) -> None:
    roots = [tmp_path / "berlin", tmp_path / "paris"]
    for root, count in zip(roots, (3, 5), strict=True):
        fill(root / "orders.1.000", count, tag=root.name)
        (root / "orders.1.000" / "id").unlink()
    assert ship(roots[0], f"{kind}:out").code == 0
    refused = ship(roots[1], f"{kind}:out")
    assert refused.code == 1
    assert "ship to another target" in refused.err
    assert shipped(kind) == there(roots[0])
    assert ship(roots[1], f"{kind}:other").code == 0
    assert shipped(kind, "other") == there(roots[1])
    assert ship(roots[0], f"{kind}:out").err == f"0 rows added to {kind}:out\n"


POINTS = {
    "iceberg": [
        ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", "before"),
        ("pyiceberg.catalog.sql", "SqlCatalog.commit_table", "after"),
        ("pipeline.tables.stream", "Stream.commit", "after"),
    ],
    "parquet": [
        ("pipeline.tables.shipping", "write_parquet", "after"),
        ("os", "replace", "before"),
        ("pipeline.tables.shipping", "ParquetTarget.write", "after"),
        ("pipeline.tables.stream", "Stream.commit", "before"),
        ("pipeline.tables.stream", "Stream.commit", "after"),
    ],
    "delta": [
        ("deltalake", "write_deltalake", "before"),
        ("deltalake", "write_deltalake", "after"),
        ("pipeline.tables.stream", "Stream.commit", "after"),
    ],
}


JOINS = [
    ("parquet", ("pipeline.tables.shipping", "extend_parquet", "before")),
    ("parquet", ("pipeline.tables.shipping", "extend_parquet", "after")),
    *(("parquet", point) for point in POINTS["parquet"][1:]),
    *(("delta", point) for point in POINTS["delta"]),
    ("delta", ("deltalake.table", "TableOptimizer.compact", "before")),
    ("delta", ("deltalake.table", "TableOptimizer.compact", "after")),
]
DEATHS = [
    *((kind, point, ["--batch-bytes", "2000"]) for kind in KINDS for point in POINTS[kind]),
    *((kind, point, ["--join"]) for kind, point in JOINS),
]


@pytest.mark.parametrize(("kind", "point", "more"), DEATHS)
def test_killed_anywhere_the_counts_agree(
    ship: Ship, shards: Path, kind: str, point: tuple[str, str, str], more: list[str]
) -> None:
    words = [str(shards), f"{kind}:out", *more]
    joins = more == ["--join"]
    if joins:
        assert ship(*words).code == 0
    for _ in range(3):
        fill(shards / "orders.2.000", 1, first=sej.Journal(shards / "orders.2.000").end_offset)
        die(point, "ship", *words)
    fill(shards / "orders.2.000", 1, first=sej.Journal(shards / "orders.2.000").end_offset)
    assert ship(*words).code == 0
    assert shipped(kind) == there(shards)
    assert not [name for name in os.listdir("out") if name.endswith(".tmp")]
    if joins and kind == "delta":
        assert len(DeltaTable("out").file_uris()) == 1
    elif joins:
        assert len(os.listdir("out")) == 2, "the file and the lock"


def test_a_reader_that_knows_the_end_of_a_file_finds_its_rows_after_a_join(ship: Ship, journal: Path) -> None:
    """As Polars and Spark do between plan and query."""
    assert ship(journal, "parquet:out").code == 0
    before = pq.read_metadata("out/part-000000000000.parquet")
    fill(journal, 5, first=sej.Journal(journal).end_offset)
    assert ship(journal, "parquet:out", "--join").code == 0
    with open("out/part-000000000000.parquet", "rb") as file:
        assert pq.ParquetFile(file, metadata=before).read()["offset"].to_pylist() == list(range(100))
        assert pq.ParquetFile(file).read()["offset"].to_pylist() == list(range(105))


def test_a_file_is_joined_a_limited_number_of_times(ship: Ship, journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.tables.shipping._JOINED_RUNS", 3)
    for _ in range(7):
        fill(journal, 1, first=sej.Journal(journal).end_offset)
        assert ship(journal, "parquet:out", "--join").code == 0
    assert [pq.ParquetFile(path).num_row_groups for path in sorted(Path("out").glob("*.parquet"))] == [3, 3, 1]
    assert shipped("parquet") == there(journal)


def test_a_large_file_and_one_of_other_columns_stay(ship: Ship, journal: Path) -> None:
    def run(*words: str) -> int:
        fill(journal, 1, first=sej.Journal(journal).end_offset)
        assert ship(journal, "parquet:out", "--join", *words).code == 0
        return len(list(Path("out").glob("*.parquet")))

    assert [run(), run(), run("--batch-bytes", "100"), run("--columns", "offset"), run(), run()] == [1, 1, 2, 3, 4, 4]
    files = sorted(Path("out").glob("*.parquet"))
    offsets = [offset for file in files for offset in pq.read_table(file, columns=["offset"])["offset"].to_pylist()]
    assert offsets == list(range(106))


@pytest.mark.parametrize(
    ("name", "codec"), [("zstd", "ZSTD"), ("snappy", "SNAPPY"), ("gzip", "GZIP"), ("none", "UNCOMPRESSED")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_files_are_compressed_as_requested(ship: Ship, journal: Path, kind: str, name: str, codec: str) -> None:
    assert ship(journal, f"{kind}:out", *([] if name == "zstd" else ["--compression", name])).code == 0
    (file,) = Path("out").rglob("*.parquet")
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == codec


READERS: dict[str, Callable[[str], list[int]]] = {
    "duckdb": lambda out: [row[0] for row in duckdb.execute(f"SELECT \"offset\" FROM '{out}/*.parquet'").fetchall()],
    "polars": lambda out: polars.scan_parquet(f"{out}/*.parquet").select("offset").collect()["offset"].to_list(),
    "pyarrow": lambda out: pq.read_table(out, columns=["offset"])["offset"].to_pylist(),
    "delta": lambda out: DeltaTable(out).to_pyarrow_table(columns=["offset"])["offset"].to_pylist(),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_see_each_row_once_while_files_are_joined(journal: Path, tmp_path: Path, reader: str) -> None:
    """A producer appends, a process ships and joins, and each query finds all rows that are shipped."""
    kind, out = "delta" if reader == "delta" else "parquet", str(tmp_path / "out")
    words = ["--follow", "--join", "--batch-age", "0s", "--batch-bytes", "20000", str(journal), f"{kind}:{out}"]
    assert command.sej("ship", "--join", str(journal), f"{kind}:{out}").returncode == 0
    found: set[int] = set()
    process = command.start("ship", *words)
    try:
        with sej.Writer(journal) as writer:
            while len(found) < 20:
                for _ in range(20):
                    writer.append(os.urandom(100))
                offsets = READERS[reader](out)
                assert sorted(offsets) == list(range(len(offsets)))
                assert len(offsets) >= max(found, default=0)
                found.add(len(offsets))
                assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_columns_conditions_and_a_start(ship: Ship, journal: Path) -> None:
    words = ("--columns", "offset,value", "--where", "type = 1", "--start", "50", "--reader", "night")
    assert ship(journal, "parquet:out", *words).code == 0
    table = pq.read_table("out/part-000000000000.parquet")
    assert table.column_names == ["offset", "value"]
    assert table["offset"].to_pylist() == [n for n in range(50, 100) if n % 3 == 1]
    assert sej.read_offset(journal, "night") == 100, "messages that were left out are done too"


def test_a_hub_is_shipped(ship: Ship, hub_root: Path) -> None:
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        for wanted in (14, 14):
            assert ship("berlin", "parquet:out", "--hub", server.address).code == 0
            assert len(shipped("parquet")) == wanted
        assert sej.read_offset(hub_root / "berlin.plain.log", "r") is None
        assert ship("berlin", "parquet:again", "--hub", server.address, "--reader", "r").code == 0
        assert sej.read_offset(hub_root / "berlin.plain.log", "r") == 3


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("other", ["berlin", "paris"])
def test_of_two_that_ship_to_a_delta_table_one_is_refused(
    hub_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool, other: str
) -> None:
    """A hub needs no reader's name, so no lock keeps them apart: two runs of a timer may overlap."""
    table = str(tmp_path / "out")

    def run(paths: str, between: Callable[[], object] = lambda: None) -> int:
        target = DeltaTarget(table)
        write = target.write

        def later(batch: Any, offsets: dict[str, int]) -> None:
            monkeypatch.undo()
            between()
            write(batch, offsets)

        monkeypatch.setattr(target, "write", later)
        return run_ship(paths, target, reader=None, hub=server.address, timeout=0.0, batch_rows=4)

    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        messages = {
            client: [sej.Message(at, at, 0, b"", b"%d" % at) for at in range(9)] for client in ("paris", "rome")
        }
        for client, some in messages.items():
            store.put(client, "log", some)
        if exists:
            run("rome")
        before = 9 * exists
        if other == "berlin":
            with pytest.raises(
                sej.LockedError, match=r"messages of berlin\..* were added .* in the meantime, each once"
            ):
                run("berlin", lambda: run(other))
            assert len(shipped("delta", table)) == before + 14
        else:
            assert run("berlin", lambda: run(other)) == 14
            assert len(shipped("delta", table)) == before + 23
        assert run("berlin") == 0


def test_messages_that_another_process_shipped_between_two_commits_are_refused(shards: Path, tmp_path: Path) -> None:
    """The second commit has rows of one shard only, and follows a commit of the other process to another shard."""
    table, (one, other) = str(tmp_path / "out"), (shards / "orders.2.001", shards / "orders.2.000")

    def run(path: Path, reader: str, target: DeltaTarget) -> int:
        return run_ship(path, target, reader=reader, columns=["shard", "offset", "value"], batch_rows=1, timeout=0.0)

    def add(path: Path) -> None:
        fill(path, 1, first=sej.Journal(path).end_offset)

    run(shards, "a", DeltaTarget(table))
    writes: list[int] = []

    class Target(DeltaTarget):
        def write(self, batch: Any, offsets: dict[str, int]) -> None:
            if not writes:
                add(other)
                assert run(other, "b", DeltaTarget(table)) == 1
            super().write(batch, offsets)
            writes.append(batch.num_rows)

    add(one)
    with pytest.raises(sej.LockedError, match=r"messages of orders\.2\.000 were added .* in the meantime, each once"):
        run(shards, "a", Target(table))
    assert writes == [1]
    assert run(shards, "a", DeltaTarget(table)) == 0
    assert len(shipped("delta", table)) == len(there(shards)) == 102


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_among_the_files_of_a_journal_is_refused(ship: Ship, journal: Path, kind: str) -> None:
    before = sorted(journal.rglob("*"))
    for target in (f"{journal}/jnl", f"{journal}/jnl/out", f"file://{journal}/idx"):
        refused = ship(journal, f"{kind}:{target}")
        assert (refused.code, f"is among the files of the journal {journal}" in refused.err) == (2, True)
    assert sorted(journal.rglob("*")) == before


def test_errors(ship: Ship, journal: Path, tmp_path: Path) -> None:
    assert ship(journal, "s3:x").code == 2
    assert "PyIceberg does not join" in ship(journal, "iceberg:x", "--join").err
    assert ship("missing", "parquet:out").code == 4
    refused = ship(journal, "parquet:s3a://b/x")
    assert (refused.code, "'s3a://b/x' is on a file system of type s3a: let Spark write" in refused.err) == (2, True)
    assert ship(journal, "parquet:out").code == 0
    with Lock(tmp_path / "out" / ".sej-ship.lck").acquire():
        assert ship(journal, "parquet:out").code == 3
    with sej.Offset(journal, default_reader("parquet:out")):
        done = ship(journal, "parquet:out")
        assert (done.code, "ship-" in done.err) == (3, True)
    (tmp_path / "ice").mkdir()
    with Lock(tmp_path / "ice" / ".sej-ship.lck").acquire():
        assert ship(journal, "iceberg:ice").code == 3
    (tmp_path / "ice" / "catalog.db").write_bytes(b"x" * 5000)
    done = ship(journal, "iceberg:ice")
    assert done.code == 1 and "the Iceberg table cannot be read or written" in done.err
    (tmp_path / "out" / "part-000000000001.parquet").write_bytes(b"x")
    done = ship(journal, "parquet:out")
    assert done.code == 1 and "does not tell which messages it has" in done.err
    (tmp_path / "file").write_bytes(b"")
    done = ship(journal, "delta:file/out")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert done.err.startswith("sej: file/out: the Delta table cannot be read or written: ")


def test_messages_of_a_target_are_synced_first(journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure the journal has all messages whose offsets the target has."""
    events: list[str] = []
    monkeypatch.setattr(
        "pipeline.tables.shipping.sync_up_to", lambda directory, offset: events.append(f"sync {offset}")
    )
    monkeypatch.setattr(ParquetTarget, "write", lambda self, batch, offsets: events.append("write"))
    assert inside(monkeypatch, "ship", journal, f"parquet:{tmp_path / 'out'}").code == 0
    assert events == ["sync 100", "write"]


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.parquet"])
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str) -> None:
    """With a limit of the size of files."""
    rows, limits = pa.table({"value": [os.urandom(100)] * 100}), resource.getrlimit(resource.RLIMIT_FSIZE)
    form = format_of(name)
    assert form is not None
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, limits[1]))
        with pytest.raises(OSError, match=f"this file was not written: .*{tmp_path / name}"):
            write_file(rows.to_reader(), form, str(tmp_path / name))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
