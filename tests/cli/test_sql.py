"""``sej sql``, ``sej export`` and ``sej spark count``, which need no Spark."""

import json
import os
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sej
from pipeline import jobs
from pipeline.options import OptionError
from pipeline.tables.commands import _named
from tests.cli import command
from tests.cli.inside import Done, inside
from tests.pipeline.conftest import BASE_NS


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> "Run":
    monkeypatch.chdir(tmp_path)
    with sej.Writer("orders.3") as writer:
        values = [b'{"x": %d, "name": "n\\t%d"}' % (n, n % 3) for n in range(10)]
        writer.append_many(values, [b"k%d" % (n % 2) for n in range(10)], timestamp=[BASE_NS + n for n in range(10)])
    with sej.Writer("odd") as writer:
        writer.append(b"\xff\x1b[2J", b"k", timestamp=sej.NO_TIMESTAMP)
    return Run(monkeypatch)


class Run:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, *words: str | Path) -> Done:
        return inside(self._monkeypatch, *words)

    def rows(self, query: str, *more: str) -> list[dict[str, object]]:
        done = self("sql", query, *more, "--json")
        assert (done.code, done.err) == (0, ""), done.err
        return [json.loads(line) for line in done.out.splitlines()]


def test_json_is_read_and_times_are_times(run: Run) -> None:
    query = "SELECT value->>'$.name' AS name, sum((value->>'$.x')::INT) AS x FROM orders_3 GROUP BY 1 ORDER BY 1"
    assert run.rows(query, "orders.3") == [
        {"name": "n\t0", "x": 18}, {"name": "n\t1", "x": 12}, {"name": "n\t2", "x": 15},
    ]  # fmt: skip
    query = "SELECT count(*) AS n, min(timestamp) AS t, max(timestamp_ns) AS ns FROM t WHERE timestamp >= '2023-11-14'"
    assert run.rows(query, "t=orders.3") == [{"n": 10, "t": "2023-11-14T22:13:20Z", "ns": BASE_NS + 9}]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ('SELECT "offset" AS n FROM t WHERE "offset" > 5 AND "offset" < 7 AND shard IS NULL', [{"n": 6}]),
        ('SELECT count(*) AS n FROM t AS a JOIN t AS b USING ("offset") WHERE a."offset" = 3', [{"n": 1}]),
        ('SELECT count(*) AS n FROM t AS a, t AS b WHERE a."offset" = 3 AND b."offset" < 3', [{"n": 3}]),
        ("SELECT count(*) AS n FROM (SELECT * EXCLUDE (value) FROM t)", [{"n": 10}]),
        ("SELECT octet_length(value_bytes) AS n FROM t LIMIT 1", [{"n": 24}]),
        ("WITH a AS (SELECT max(\"offset\") m FROM t) SELECT type AS n FROM t, a WHERE \"offset\" = m", [{"n": 0}]),
        ("CREATE TABLE c AS SELECT * FROM t; SELECT count(DISTINCT value) AS n FROM c", [{"n": 10}]),
        ("SELECT 1 AS n", [{"n": 1}]),
        ('SELECT count(*) AS n FROM t WHERE timestamp <= TIMESTAMPTZ \'2023-11-14 23:13:20+01\'', [{"n": 10}]),
    ],
)  # fmt: skip
def test_columns_and_conditions_that_are_left_out_change_nothing(
    run: Run, query: str, wanted: list[dict[str, object]]
) -> None:
    assert run.rows(query, "t=orders.3") == wanted


def test_what_a_query_does_not_use_is_not_read(run: Run) -> None:
    """Damage before the offset that the query asks for is not met."""
    with sej.Writer("long", segment_bytes=1 << 16) as writer:
        for _ in range(40):
            writer.append_many([b"x" * 1000] * 10)
    segment = min(Path("long/jnl").iterdir())
    damaged = segment.read_bytes().replace(b"x" * 1000, b"y" * 1000)  # a time stays: it says which block this is
    segment.write_bytes(damaged)
    assert run.rows('SELECT count(*) AS n FROM long WHERE "offset" >= 200', "long") == [{"n": 200}]
    done = run("sql", "SELECT count(*) FROM long", "long")
    assert (done.code, done.out) == (1, b"")
    assert "the disk changed them" in done.err and "sej doctor" in done.err


def test_columns_of_one_name_are_all_returned(run: Run) -> None:
    query = 'SELECT a.key, b.key, 7 AS key_1 FROM orders_3 AS a JOIN odd AS b ON a."offset" = b."offset"'
    assert run.rows(query, "orders.3", "odd") == [{"key": "k0", "key_2": "k", "key_1": 7}]


def test_all_statements_but_the_last_may_have_rows(run: Run) -> None:
    assert run.rows("SELECT * FROM odd; SELECT count(*) AS n FROM odd", "odd") == [{"n": 1}]


def test_values_that_a_format_cannot_hold(run: Run) -> None:
    query = "SELECT 'nan'::DOUBLE AS a, {'x': ['-inf'::FLOAT, 1]} AS b"
    assert run.rows(query, "odd") == [{"a": "nan", "b": {"x": ["-inf", 1.0]}}]
    done = run("sql", "SELECT 'infinity'::TIMESTAMP AS t", "odd")
    assert (done.code, done.out) == (2, b"")
    assert 'write it as text: "t"::VARCHAR' in done.err
    assert run.rows("SELECT 'infinity'::TIMESTAMP::VARCHAR AS t", "odd") == [{"t": "infinity"}]


def test_bytes_that_are_not_text(run: Run) -> None:
    assert run.rows("SELECT value, value_bytes, timestamp FROM odd", "odd") == [
        {"value": "\\xff\x1b[2J", "value_bytes_b64": "/xtbMko=", "timestamp": None}
    ]
    done = run("sql", "SELECT value, timestamp FROM odd", "odd")
    assert done.out.decode().splitlines()[2] == "\\xff\\x1b[2J  NULL", "nothing controls the terminal"


def test_formats(run: Run) -> None:
    query = 'SELECT "offset", key FROM orders_3 ORDER BY 1 LIMIT 2'
    assert run("sql", query, "orders.3").out == b"offset  key\n------  ---\n     0  k0\n     1  k1\n"
    assert run("sql", query, "orders.3", "--format", "csv").out == b"offset,key\n0,k0\n1,k1\n"
    assert (
        run("sql", query, "orders.3", "--format", "json").out
        == b'{"offset": 0, "key": "k0"}\n{"offset": 1, "key": "k1"}\n'
    )
    done = run("sql", query, "orders.3", "-o", "out.parquet")
    assert (done.code, done.out, done.err) == (0, b"", "2 rows written to out.parquet\n")
    assert pq.read_table("out.parquet").to_pylist() == [{"offset": 0, "key": "k0"}, {"offset": 1, "key": "k1"}]
    assert run("sql", query, "orders.3", "-o", "out.csv").code == 0
    assert Path("out.csv").read_text() == "offset,key\n0,k0\n1,k1\n"


def test_a_query_that_fails_leaves_the_output_as_it_was(run: Run) -> None:
    Path("out.csv").write_text("before")
    done = run(
        "sql", 'SELECT CASE WHEN "offset" = 9 THEN value::INT END AS x FROM orders_3', "orders.3", "-o", "out.csv"
    )
    assert done.code == 1 and "Conversion Error" in done.err
    assert Path("out.csv").read_text() == "before"
    assert not [name for name in os.listdir() if name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["SELECT offset FROM t", "t=orders.3"], 2, 'write the column as "offset"'),
        (["SELECT nothing FROM t", "t=orders.3"], 2, 'column "nothing" not found'),
        (["SELECT 1 FROM nothing", "t=orders.3", "u=odd"], 2, "The tables here are t, u"),
        (["SELECT 1 FROM nothing", "orders.3"], 2, "does not exist!\nThe tables here are orders_3"),
        (["", "t=orders.3"], 2, "expected a query"),
        (["SELECT 1 FROM t", "t=missing"], 4, "the path does not exist"),
        (["SELECT 1", "orders.3", "./orders.3"], 2, "two paths would be the table 'orders_3'"),
        (["SELECT 1"], 2, "expected at least one PATH"),
        (["SELECT 1", "odd", "--format", "parquet"], 2, "needs --output"),
        (["SELECT 1", "odd", "-o", "o.xyz"], 2, "ends with .csv, .json, .jsonl, .parquet or .txt, or a --format"),
        (["SELECT 1", "odd", "-o", "o.xyz", "--format", "csv"], 0, "1 row written to o.xyz"),
        (["SELECT 1", "odd", "-o", "o.TXT"], 0, "1 row written to o.TXT"),
        (["SELECT 1", "odd", "--format", "csv", "--json"], 2, "exclude each other"),
        (["SELECT 1", "odd", "--start", "soon"], 2, "is not an offset or a time"),
        (["SELECT 1", "odd", "--client", "berlin"], 4, "unknown client 'berlin'"),
        (["SELECT count(*) FROM orders_3", "orders.3", "--start", "99", "--end", "5"], 0, ""),
    ],
)
def test_errors_say_what_was_expected(run: Run, words: list[str], code: int, says: str) -> None:
    done = run("sql", *words)
    assert (done.code, says in done.err) == (code, True), done


def test_names_of_tables() -> None:
    paths = ("data/orders.3.005", "jobs.tq", "a=data", "7/", "x/y-z")
    assert list(_named(paths, from_hub=False)) == ["orders_3_005", "jobs", "a", "_7", "y_z"]
    assert _named((), from_hub=True) == {"hub": None}
    assert _named(("berlin.orders.3",), from_hub=True) == {"berlin_orders_3": "berlin.orders.3"}


def test_start_and_end_limit_all_tables(run: Run) -> None:
    query = "SELECT count(*) AS n FROM orders_3"
    assert run.rows(query, "orders.3", "--start", "3", "--end", "5") == [{"n": 2}]
    assert run.rows(query, "orders.3", "--start", "2023-11-14T22:13:20.000000008Z") == [{"n": 2}]


def test_no_output_among_the_files_of_a_journal(run: Run) -> None:
    Path("link").symlink_to("orders.3/jnl")
    for target in ("orders.3/jnl/x.csv", "orders.3/ofs/deep/x.csv", "link/x.csv"):
        for words in (["export", "orders.3", target], ["sql", "SELECT 1", "orders.3", "-o", target]):
            refused = run(*words)
            assert refused.code == 2
            journal = Path("orders.3").resolve()
            assert f"{target!r} is among the files of the journal {journal}, where only SEJ may write" in refused.err
    assert not any("x.csv" in str(path) for path in Path("orders.3").rglob("*"))
    assert run("export", "orders.3", "orders.3/x.csv").code == 0


def test_export_writes_one_file(run: Run) -> None:
    for name in ("x.parquet", "x.arrow", "x.csv", "x.jsonl"):
        done = run("export", "orders.3", name, "--columns", "offset,value", "--where", "offset >= 8")
        assert (done.code, done.out, done.err) == (0, b"", f"2 rows written to {name}\n")
    assert pq.read_table("x.parquet")["offset"].to_pylist() == [8, 9]
    with pa.ipc.open_file("x.arrow") as file:
        assert file.read_all()["offset"].to_pylist() == [8, 9]
    assert [json.loads(line)["offset"] for line in Path("x.jsonl").read_text().splitlines()] == [8, 9]
    assert Path("x.csv").read_text().startswith('offset,value\n8,"{""x"": 8')
    done = run("export", "orders.3", "x.xls")
    assert (done.code, "ends with .parquet" in done.err) == (2, True)
    for words in (["export", "orders.3", "s3a://b/x.csv"], ["sql", "SELECT 1", "orders.3", "-o", "s3a://b/x.csv"]):
        refused = run(*words)
        assert refused.code == 2
        assert "'s3a://b/x.csv' is on a file system of type s3a: let Spark write there, as in" in refused.err
        assert "write.parquet('s3a://b/x.csv')" in refused.err
    assert run("export", "missing", "x.csv").code == 4


def test_the_real_program_answers(run: Run) -> None:
    done = command.sej("sql", "SELECT count(*) AS n FROM orders_3", "orders.3", env={"JAVA_HOME": "/nowhere"})
    assert (done.returncode, done.stdout, done.stderr) == (0, b" n\n--\n10\n", b"")


def test_a_reader_that_leaves_ends_it_quietly(run: Run) -> None:
    with sej.Writer("many") as writer:
        writer.append_many([b"v" * 100] * 50_000)
    program = [*command.COMMAND, "sql", "SELECT value FROM many", "many", "--format", "csv"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=command.ENV) as process:
        assert process.stdout is not None and process.stderr is not None
        assert re.match(rb"value\n", process.stdout.readline())
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


def test_counting_needs_no_spark(run: Run) -> None:
    assert run("spark", "count", "orders.3").out == b"10\n"


def test_dedupe_names_a_column_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"by has the column 'user'; expected some of client, .*value$"):
        jobs.dedupe(None, tmp_path, tmp_path / "t", by=["key", "user"])  # type: ignore[arg-type]
