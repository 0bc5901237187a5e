"""Tables of text queues, of Kestrel queues, and of journals behind a hub's server."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import hub
import kestrel
import pipeline
import sej
from hub.tokens import Grant, hash_token
from hub.wire import Client, ClientTLS, Server, ServerTLS, Tokens, make_token
from kestrel import segmented
from tests.cli.inside import inside
from tests.hub.support import CERTIFICATES
from tests.hub.transport import Pipe
from tests.pipeline.conftest import BASE_NS, fill
from tests.sej.support import overwrite, write


def damage(journal: Path) -> None:
    """Overwrite the middle of message 7 of 20."""
    fill(journal, 20)
    segment = next((journal / "jnl").iterdir())
    overwrite(segment, segment.read_bytes().index(b"v-7") - 10, bytes(20))


# --- text queues


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "lists"
    folder.mkdir()
    (folder / "jobs.tq").write_text("#hello\n-ship 17\n and 18\n\\retries=3 \n=done\n!broken\n")
    (folder / "more.tq").write_text("-é\n")
    return folder


def test_a_text_queue_has_a_row_for_each_entry(texts: Path) -> None:
    table = pipeline.table(texts / "jobs.tq")
    assert table.schema.names == ["path", "position", "status", "value", "variables"]
    assert [tuple(row.values())[1:] for row in table.to_arrow().to_pylist()] == [
        (0, "comment", "hello", []),
        (7, "queued", "ship 17\nand 18", ["retries=3 "]),
        (36, "cleared", "done", []),
        (42, "critical", "broken", []),
    ]
    assert table.count() == 4
    assert pipeline.table(texts).count() == 5
    assert pipeline.table(texts, pattern=r"more.*").to_arrow()["value"].to_pylist() == ["é"]
    queued = pipeline.table(texts, where="status = 'queued' AND position < 20", columns=["value"])
    assert queued.to_arrow()["value"].to_pylist() == ["ship 17\nand 18", "é"]
    assert queued.scan().collect().height == queued.count() == 2


def test_reading_a_text_queue_changes_nothing(texts: Path) -> None:
    before = sorted((path.name, path.read_bytes()) for path in texts.iterdir())
    assert pipeline.table(texts).to_arrow().num_rows == 5
    assert sorted((path.name, path.read_bytes()) for path in texts.iterdir()) == before


def test_a_text_queue_whose_bytes_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.tq")).write_bytes(b"-caf\xe9\n\\na\xffme=1 \n")
    (row,) = pipeline.table(tmp_path).to_arrow().to_pylist()
    assert row["path"] == f"{tmp_path}/\ufffd.tq"
    assert (row["value"], row["variables"]) == ("caf\ufffd", ["na\ufffdme=1 "])


def test_sql_over_a_text_queue(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT min(status) AS first, count(*) AS n FROM jobs WHERE position > 10"
    done = inside(monkeypatch, "sql", query, texts / "jobs.tq", "--json")
    assert (done.code, done.out) == (0, b'{"first": "cleared", "n": 2}\n')


# --- Kestrel


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    with kestrel.Queue(tmp_path / "spool", "cars") as cars:
        for n in range(3):
            cars.put(b"car %d" % n)
        cars.reserve()
    with segmented.Queue(tmp_path / "spool", "jobs") as jobs:
        for n in range(4):
            jobs.put(b"job %d" % n)
    return tmp_path / "spool"


def test_kestrel_queues_are_recognised(spool: Path, tmp_path: Path) -> None:
    cars = pipeline.table(spool / "cars")
    assert cars.schema.names[:4] == ["queue", "ordinal", "id", "state"]
    assert [(row["state"], row["data"]) for row in cars.to_arrow().to_pylist()] == [
        ("reserved", b"car 0"),
        ("ready", b"car 1"),
        ("ready", b"car 2"),
    ]
    assert pipeline.table(spool / "jobs", columns=["data"]).to_arrow()["data"].to_pylist() == [
        b"job %d" % n for n in range(4)
    ]
    assert pipeline.table(spool).count() == 7
    assert pipeline.table(spool, pattern="jobs", where="ordinal >= 2").count() == 2
    assert pipeline.table(spool, where="add_time > '2020-01-01' AND queue = 'cars'").count() == 3
    with pytest.raises(sej.NotAJournalError):
        pipeline.table(spool / "jobs" / "nothing")


def test_sql_over_kestrel_queues(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "SELECT queue, max(data) AS last, octet_length(max(data_bytes)) AS size FROM spool GROUP BY 1 ORDER BY 1"
    done = inside(monkeypatch, "sql", query, spool, "--format", "csv")
    assert (done.code, done.out) == (0, b"queue,last,size\ncars,car 2,5\njobs,job 3,5\n")


def test_damage_in_a_kestrel_queue(spool: Path) -> None:
    with (spool / "cars").open("ab") as file:
        file.write(b"\xff" * 40)
    with pytest.raises(sej.CorruptionError, match=r"skip damage \(onCorruption=skip in Spark, on_corruption='skip'"):
        pipeline.table(spool / "cars").to_arrow()
    assert pipeline.table(spool / "cars", on_corruption="skip").count() == 3


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": 5}, "start and end need a journal"),
        ({"end": "2020-01-01"}, "start and end need a journal"),
        ({"clients": "berlin"}, "clients need a journal"),
        ({"pattern": "nothing"}, "matches none of"),
        ({"columns": ["offset"]}, "unknown column 'offset'"),
        ({"where": "variables = 'x'"}, "variables"),
    ],
)
def test_arguments_that_do_not_fit(texts: Path, spool: Path, given: dict[str, Any], says: str) -> None:
    for path in (texts, spool):
        with pytest.raises((ValueError, TypeError), match=says):
            pipeline.table(path, **given)


@pytest.mark.parametrize("names", [["orders", "my journal"], ["berlin.orders", "orders"]])
def test_a_journal_whose_name_fits_no_layout_is_not_left_out_silently(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        fill(tmp_path / "root" / name, 2)
    odd = tmp_path / "root" / names[1]
    with pytest.raises(sej.NotAJournalError, match=r"neither a shard's .* nor a client's") as refused:
        pipeline.table(tmp_path / "root").count()
    assert refused.value.path == str(odd)
    with pytest.raises(sej.NotAJournalError):
        pipeline.count(tmp_path / "root")
    assert pipeline.table(odd).count() == 2
    if names[0] == "berlin.orders":
        assert pipeline.table(tmp_path / "root", pattern="berlin.*").count() == 2


def test_paths_of_different_kinds_and_odd_paths(texts: Path, spool: Path, tmp_path: Path) -> None:
    fill(tmp_path / "journal", 1)
    with pytest.raises(pipeline.OptionError, match="of different kinds"):
        pipeline.table([texts, spool, tmp_path / "journal"])
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme").write_text("hello")
    for path in (tmp_path / "notes.txt", tmp_path / "notes"):
        with pytest.raises(sej.NotAJournalError):
            pipeline.table(path)
    with pytest.raises(sej.JournalNotFoundError):
        pipeline.table(tmp_path / "missing" / "deep")


# --- a hub behind its server

Far = Callable[..., pipeline.Table]


@pytest.fixture
def far(hub_root: Path) -> Iterator[Far]:
    """Tables through a real server with TLS; its token is good for berlin and tokyo."""
    token = make_token()
    grants = [Grant(hash_token(token), "read", ("berlin", "tokyo"))]
    tls = ServerTLS(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0", tls=tls, tokens=Tokens(grants)) as server:
        fill(hub_root / "moscow.orders.1.000", 9, tag="hidden")

        def table(paths: Any = None, **given: Any) -> pipeline.Table:
            return pipeline.table(
                paths, hub=server.address, token=token, tls=ClientTLS(CERTIFICATES / "ca.pem"), **given
            )

        yield table


def test_a_hub_has_the_rows_of_its_disk(far: Far, hub_root: Path) -> None:
    near = pipeline.table(hub_root, clients=["berlin", "tokyo"])
    order = ["client", "prefix", "shard", "offset"]
    sort = [(name, "ascending") for name in order]
    assert far().to_arrow().sort_by(sort) == near.to_arrow().sort_by(sort)
    assert far().count() == near.count() == 25


def test_names_clients_patterns_and_bounds_on_a_hub(far: Far) -> None:
    assert far("tokyo").count() == 11
    assert far(["berlin.orders.1", "berlin.plain.log"]).count() == 14
    assert far(clients="tokyo", pattern=r".*\.001").count() == 6
    assert far(where="client = 'berlin' AND shard = 1").count() == 6
    assert far("tokyo.orders.1.001", start=4, columns=["offset"]).to_arrow()["offset"].to_pylist() == [4, 5]
    times = far(
        "tokyo.orders.1.000", where=f"timestamp_ns >= {BASE_NS + 2 * 10**9} AND timestamp_ns < {BASE_NS + 4 * 10**9}"
    )
    assert times.to_arrow()["offset"].to_pylist() == [2, 3]
    assert far("tokyo").scan().filter(pl.col("shard") == 1).collect().height == 6
    with pytest.raises(sej.JournalNotFoundError, match="no readable journal"):
        far("moscow").count()
    with pytest.raises(sej.JournalNotFoundError, match="unknown client 'moscow'"):
        far(clients="moscow").count()


def test_a_hub_sends_what_a_table_needs(tmp_path: Path) -> None:
    write(tmp_path / "berlin.large", [bytes(1000)] * 3000, timestamp=list(range(3000)))
    with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0") as server, Pipe(server.address) as pipe:

        def sent(read: Callable[[pipeline.Table], int], rows: int, **options: Any) -> int:
            before = pipe.received
            assert read(pipeline.table("berlin", hub=pipe.address, **options)) == rows
            return pipe.received - before

        def rows(table: pipeline.Table) -> int:
            return sum(batch.num_rows for batch in table.to_batches())

        whole = sent(rows, 3000)
        assert whole > 3_000_000
        assert sent(pipeline.Table.count, 3000) < 2000
        assert sent(pipeline.Table.count, 1000, start=2000) < 2000
        assert sent(rows, 30, where="timestamp_ns >= 2970") < whole / 50
        assert sent(rows, 30, where="timestamp_ns < 30") < whole / 50
        assert sent(rows, 3000, columns=["offset", "timestamp_ns"]) < 3000 * 12
        assert sent(rows, 3000, columns=["offset"]) < 3000
        before = pipe.received
        assert pipeline.count("berlin", hub=pipe.address) == pipeline.count(None, hub=pipe.address) == 3000
        assert pipe.received - before < 2000


def test_sql_over_a_hub(hub_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        query = "SELECT client, count(*) AS n FROM hub GROUP BY 1 ORDER BY 1"
        done = inside(monkeypatch, "sql", query, "--hub", server.address, "--format", "csv")
        assert (done.code, done.out) == (0, b"client,n\nberlin,14\ntokyo,11\n")
        query = "SELECT count(*) AS n FROM tokyo_orders_1 WHERE shard = 1"
        done = inside(monkeypatch, "sql", query, "tokyo.orders.1", "--hub", server.address, "--json")
        assert done.out == b'{"n": 6}\n'


def test_gaps_and_damage_on_a_hub_are_those_of_the_disk(tmp_path: Path) -> None:
    """Wherever a read ends: before, inside or after messages that are missing."""
    root = tmp_path / "hub"
    damage(root / "berlin.log")

    def offsets(**options: Any) -> list[list[int]]:
        ends = [pipeline.table(columns=["offset", "value"], end=end, **options) for end in range(21)]
        whole = [pipeline.table(end=end, **options) for end in range(21)]
        return [table.to_arrow()["offset"].to_pylist() for table in (*ends, *whole)]

    with hub.Store(root) as store, Server(store, "127.0.0.1:0") as server:
        far: dict[str, Any] = {"paths": None, "hub": server.address}
        for verify in (False, True):  # with checksums, the damaged block is the whole journal
            how: dict[str, Any] = {"on_corruption": "skip", "verify": verify}
            found = offsets(**far, **how)
            assert found == offsets(paths=root, **how)
            assert len(found[20]) == (0 if verify else 19)
        sej.Journal(root / "berlin.log").repair()
        assert offsets(**far) == offsets(paths=root)


def test_a_count_through_a_hub_does_not_contain_damaged_messages(tmp_path: Path) -> None:
    """The hub knows where a damaged journal ends, but not how many messages are good."""
    root = tmp_path / "hub"
    damage(root / "berlin.log")
    shutil.rmtree(root / "berlin.log" / "idx")  # with an index both count without looking at each message
    with hub.Store(root) as store, Server(store, "127.0.0.1:0") as server:
        for path, address in (("berlin", server.address), (root, None)):
            with pytest.raises(sej.CorruptionError):
                pipeline.count(path, hub=address)
            for start in (None, 3):
                with pytest.raises(sej.CorruptionError):
                    pipeline.table(path, hub=address, start=start).count()
                skipping = pipeline.table(path, hub=address, start=start, on_corruption="skip")
                assert skipping.count() == 19 - (start or 0)
        sej.Journal(root / "berlin.log").repair()
        assert pipeline.count("berlin", hub=server.address) == 19
        assert pipeline.table("berlin", hub=server.address, where="offset >= 1").count() == 18


def test_a_journal_that_is_recreated_on_a_hub_after_the_plan_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "hub"
    read = Client.read_columns

    def after_a_new_one(self: Client, *arguments: Any, **options: Any) -> Any:
        shutil.rmtree(root / "berlin.log")
        fill(root / "berlin.log", 9, tag="new")
        return read(self, *arguments, **options)

    with hub.Store(root) as store, Server(store, "127.0.0.1:0") as server:
        fill(root / "berlin.log", 5)
        monkeypatch.setattr(Client, "read_columns", after_a_new_one)
        with pytest.raises(sej.TruncatedError, match="re-created on the hub since the read was planned"):
            pipeline.table("berlin", hub=server.address).to_arrow()
        stream = pipeline.follow("berlin", hub=server.address, timeout=0.0)
        with stream, pytest.raises(sej.TruncatedError, match="re-created on the hub since the read was planned"):
            next(stream)
