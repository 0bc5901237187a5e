"""Columns from the values of messages: every format, what does not fit, kept schemas, Spark, and a hub between."""

import io
import json
import random
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import msgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from pyspark.sql import SparkSession

import hub
import pipeline
import sej
import shard
from hub.wire import Server
from pipeline import jobs
from pipeline.columns import ONE_SOURCE, arrow_type
from pipeline.options import Fields, FormatError
from pipeline.schemas import keep_schema
from pipeline.values import ValueFormat
from tests.cli.inside import Done, inside

AT = datetime(2026, 1, 31, 12, 30, 0, 250_000, UTC)
ROWS: list[dict[str, Any]] = [
    {
        "id": n,
        "amount": Decimal(n) / 4,
        "at": AT,
        "name": f"n {n}",
        "tags": ["a", f"{n}"],
        "place": {"x": n},
        "ok": n > 1,
    }
    for n in range(4)
]
SCHEMA = (
    "id bigint, amount decimal(10,2), at timestamp, name string, tags array<string>, place struct<x int>, ok boolean"
)
AVRO: dict[str, Any] = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "name", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}},
        {"name": "ok", "type": "boolean"},
    ],
}  # fmt: skip
PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Place { int32 x = 1; }
enum State { OPEN = 0; PAID = 1; }
message Order {
  int64 id = 1;
  google.protobuf.Timestamp at = 2;
  string name = 3;
  repeated string tags = 4;
  Place place = 5;
  bool ok = 6;
  State state = 7;
  optional int32 maybe = 8;
  repeated Place places = 9;
  map<string, int32> counts = 10;
}
"""


def fill(path: Path, values: list[bytes]) -> Path:
    with sej.Writer(path) as writer:
        writer.append_many(values)
    return path


def rows(path: Path | str, schema: str | None = SCHEMA, **given: Any) -> list[dict[str, Any]]:
    names = given.pop("columns", None)
    if names is None and schema is not None:
        names = [each.split()[0] for each in schema.split(", ")]
    found: list[dict[str, Any]] = pipeline.table(path, schema=schema, columns=names, **given).to_arrow().to_pylist()
    return found


def as_json(row: dict[str, Any]) -> bytes:
    return json.dumps({**row, "amount": float(row["amount"]), "at": row["at"].isoformat()}).encode()


def as_avro(row: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(AVRO), row)
    return file.getvalue()


def test_json(tmp_path: Path) -> None:
    fill(tmp_path, [json.dumps(json.loads(as_json(row)), indent=1).encode() for row in ROWS])
    assert rows(tmp_path) == ROWS


def as_msgpack(row: dict[str, Any]) -> bytes:
    packed: bytes = msgpack.packb({name: value for name, value in row.items() if name != "amount"}, datetime=True)
    return packed


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Return the descriptor set of PROTO, and the class of its messages."""
    path = tmp_path_factory.mktemp("proto")
    (path / "order.proto").write_text(PROTO)
    options = ["--include_imports", f"--descriptor_set_out={path / 'order.desc'}", f"-I{path}", "order.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], check=True)
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString((path / "order.desc").read_bytes()).file:
        pool.Add(file)
    return path / "order.desc", message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_an_avro_schema_in_a_file(tmp_path: Path) -> None:
    path = fill(tmp_path / "j", [as_avro(row) for row in ROWS])
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    assert rows(path, format="avro", definition=str(tmp_path / "order.avsc")) == ROWS


def test_protocol_buffers(tmp_path: Path, described: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    file, order = described
    written = order(id=7, name="x", tags=["a", "b"], place={"x": 3}, ok=True, state=1, places=[{"x": 4}, {}])
    written.at.FromDatetime(AT)
    values = [written.SerializeToString(), b"", b"\xff" * 9, b"\x38\x05"]  # the last one: a state without a name
    schema = (
        "id bigint, at timestamp, name string, tags array<string>, place struct<x int>, state string, maybe int,"
        " places array<struct<x int, none date>>"
    )
    path = fill(tmp_path / "j", values)
    found = rows(path, schema, columns=["id", "at", "tags", "place", "state", "maybe", "places", "bad_value"],
                 format="protobuf", definition=f"{file}:shop.Order")  # fmt: skip
    assert [row.pop("bad_value") for row in found] == [None, None, *values[2:]]
    places = [{"x": 4, "none": None}, {"x": 0, "none": None}]
    assert found[:2] == [
        {"id": 7, "at": AT, "tags": ["a", "b"], "place": {"x": 3}, "state": "PAID", "maybe": None, "places": places},
        {"id": 0, "at": None, "tags": [], "place": None, "state": "OPEN", "maybe": None, "places": []},
    ]
    assert all(value is None for row in found[2:] for value in row.values())
    monkeypatch.chdir(file.parent)
    keep_schema(str(path), Fields("id bigint", "protobuf", f"{file.name}:shop.Order"))
    monkeypatch.chdir(tmp_path)
    assert [row["id"] for row in rows(path, None, columns=["id"], mode="drop")] == [7, 0, 0]
    for wrong in ("tags string", "places string", "at array<timestamp>", "place int", "counts array<string>"):
        assert rows(path, wrong, mode="drop", format="protobuf", definition=f"{file}:shop.Order") == [], wrong


@pytest.mark.parametrize("form", ["json", "avro", "msgpack", "protobuf"])
def test_each_value_that_does_not_fit_is_found(form: str, tmp_path: Path, described: tuple[Path, Any]) -> None:
    """Among thousands, in each mode, wherever it is."""
    file, order = described
    definition = {"avro": json.dumps(AVRO), "protobuf": f"{file}:shop.Order"}.get(form)
    wanted = [{name: value for name, value in row.items() if name != "amount"} for row in ROWS] * 800

    def as_protobuf(row: dict[str, Any]) -> bytes:
        written = order(**{name: value for name, value in row.items() if name not in ("amount", "at")})
        written.at.FromDatetime(row["at"])
        value: bytes = written.SerializeToString()
        return value

    encode = {"json": as_json, "avro": as_avro, "msgpack": as_msgpack, "protobuf": as_protobuf}[form]
    dice = random.Random(form)
    bad = sorted({0, 1023, 1024, 3199, *dice.sample(range(3200), 20)})
    values = [encode(row) for row in ROWS] * 800
    for at in bad:
        values[at] = dice.choice([values[at][:-1], b"\xff" * 12, values[at] + b"\0"])
    path, schema = fill(tmp_path / "j", values), SCHEMA.replace("amount decimal(10,2), ", "")
    given: dict[str, Any] = {"format": form, "definition": definition}
    found = rows(path, schema, columns=[*wanted[0], "bad_value"], **given)
    nothing = dict.fromkeys(wanted[0])
    for at, row in enumerate(found):
        assert row == ({**nothing, "bad_value": values[at]} if at in bad else {**wanted[at], "bad_value": None}), at
    assert rows(path, schema, mode="drop", **given) == [row for at, row in enumerate(wanted) if at not in bad]
    with pytest.raises(pipeline.FormatError, match=f"offset 0: the value is not {form} with these columns"):
        rows(path, schema, mode="failfast", **given)


FRAGMENTS = [*'{}[]"\n ,:1\\', '{"id": 1}', '{"id": 2}', '"id"', "{}", '{"a": {', "}}"]


def test_no_value_is_confused_with_its_neighbours(tmp_path: Path) -> None:
    """Random texts of JSON's characters: in one batch each is what it is alone, and as Python's parser says."""
    dice = random.Random(7)
    for number in range(40):
        values = ["".join(dice.choices(FRAGMENTS, k=dice.randrange(6))).encode() for _ in range(30)]
        path = fill(tmp_path / str(number), values)
        found = rows(path, "id bigint", columns=["id", "bad_value"])
        assert len(found) == len(values)
        for value, row in zip(values, found, strict=True):
            try:
                parsed = json.loads(value)
            except ValueError:
                parsed = None
            if isinstance(parsed, dict) and type(parsed.get("id", 0)) is int:
                assert row == {"id": parsed.get("id"), "bad_value": None}, value
            else:
                assert row == {"id": None, "bad_value": value}, value


MIXED = [
    b'{"id": 1, "amount": 1.5}',
    b"plain text",
    b'{"id": "x"}',
    b'{"amount": 2}',
    b'{"id": 5, "amount": 1.555}',
    b"\xff",
]


def test_a_value_that_does_not_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = fill(tmp_path / "j", MIXED)
    schema = "id bigint, amount decimal(10,2)"
    assert rows(path, schema, columns=["id", "amount", "bad_value"]) == [
        {"id": 1, "amount": Decimal("1.50"), "bad_value": None},
        {"id": None, "amount": None, "bad_value": MIXED[1]},
        {"id": None, "amount": None, "bad_value": MIXED[2]},
        {"id": None, "amount": Decimal("2.00"), "bad_value": None},
        {"id": None, "amount": None, "bad_value": MIXED[4]},
        {"id": None, "amount": None, "bad_value": MIXED[5]},
    ]
    assert caplog.messages == [f"{path}: values that are not json with these columns: 4, the first at offset 1"]
    assert [row["id"] for row in rows(path, schema, mode="drop")] == [1, None]
    with pytest.raises(pipeline.FormatError, match=rf"{path}, offset 1: .*not an object; it is b'plain text'; .* drop"):
        rows(path, schema, mode="failfast")
    # Only the columns that are read decide.
    assert [row["id"] for row in rows(path, schema, columns=["id"], mode="drop")] == [1, None, 5]
    assert pipeline.table(path, schema=schema, columns=["bad_value"]).to_arrow().num_rows == 6
    assert pipeline.table(path, schema=schema).count() == 6


def test_conditions_on_columns_of_the_values(tmp_path: Path) -> None:
    path = fill(tmp_path / "j", [as_json(row) for row in ROWS])
    for where, ids in (
        ("amount >= 0.5", [2, 3]), ("amount = 0.25 AND offset < 2", [1]), ("id IN (1, 3)", [1, 3]),
        ("name = 'n 2'", [2]), ("at > '2026-01-31 12:31'", []), ("id != 2", [0, 1, 3]),
    ):  # fmt: skip
        assert [row["id"] for row in rows(path, where=where)] == ids, where
    for where in ("ok = 1", "tags = 'a'", "amount IN (1, 2)", "id = 1.5"):
        with pytest.raises(pipeline.OptionError, match=r"where (cannot|compares)"):
            rows(path, where=where)
    table = pipeline.table(path, schema=SCHEMA)
    assert duckdb.from_arrow(table).filter("ok").aggregate("sum(amount)").fetchall() == [(Decimal("1.25"),)]
    polars = pytest.importorskip("polars")
    assert table.scan().filter(polars.col("ok")).select("id").collect()["id"].to_list() == [2, 3]


def test_a_field_with_the_name_of_a_column_of_the_journal(tmp_path: Path) -> None:
    path = fill(tmp_path, [b'{"type": "sale", "offset": 70}'])
    assert rows(path, "value_type string, value_offset bigint") == [{"value_type": "sale", "value_offset": 70}]
    with pytest.raises(pipeline.OptionError, match="name it value_type for the field 'type'"):
        rows(path, "type string")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schema": "id bigint,"}, "the schema has ''; expected a name and a type"),
        ({"schema": "id number"}, "unknown type 'number'; expected boolean"),
        ({"schema": "id int, id int"}, "column 'id' twice"),
        ({"schema": "id int", "format": "avro"}, "format=avro needs definition: an Avro schema"),
        ({"schema": "id int", "format": "avro", "definition": "{"}, "definition='{': expected an Avro schema"),
        ({"schema": "id int", "definition": "x"}, "format=json takes no definition"),
    ],
)  # fmt: skip
def test_a_wrong_schema_is_one_sentence(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    fill(tmp_path, [b"{}"])
    with pytest.raises(pipeline.OptionError) as caught:
        pipeline.table(tmp_path, **given)
    assert said in str(caught.value)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Done]:
    monkeypatch.chdir(tmp_path)
    return lambda *words: inside(monkeypatch, *words)


def test_a_schema_is_kept_with_the_journal(run: Callable[..., Done], tmp_path: Path) -> None:
    fill(tmp_path / "orders", [as_json(row) for row in ROWS])
    assert run("schema", "show", "orders").code == 1
    assert run("schema", "set", "orders", "id bigint, amount decimal(10,2)").code == 0
    assert run("schema", "show", "orders").out == b"json: id bigint, amount decimal(10,2)\n"
    assert run("sql", "--format", "csv", "SELECT sum(amount) AS s FROM orders", "orders").out == b"s\n1.50\n"
    assert run("ship", "orders", "parquet:lake", "--columns", "id,amount").code == 0
    assert pq.read_table("lake/part-000000000000.parquet").column("id").to_pylist() == [0, 1, 2, 3]
    # It may get columns; to lose or change one must be said.
    refused = run("schema", "set", "orders", "id int")
    assert refused.code != 0 and "--replace changes" in refused.err
    assert run("schema", "set", "orders", "id bigint, amount decimal(10,2), late date").code == 0
    assert rows(tmp_path / "orders", None, columns=["id", "late"])[0] == {"id": 0, "late": None}
    assert run("schema", "set", "--replace", "orders", "name string").code == 0
    assert pipeline.table("orders").schema.names[-2:] == ["name", "bad_value"]
    assert run("schema", "remove", "orders").code == 0
    assert "name" not in pipeline.table("orders").schema.names
    (tmp_path / "orders" / "schema.json").write_text("{}")
    damaged = run("count", "orders"), run("sql", "SELECT 1 FROM orders", "orders")
    assert damaged[0].code == 0
    assert damaged[1].code != 0 and "schema.json" in damaged[1].err and "sej schema set" in damaged[1].err
    assert run("schema", "set", "--replace", "orders", "id bigint").code == 0
    assert rows(tmp_path / "orders", None, columns=["id"])[3] == {"id": 3}


def test_a_schema_of_a_hubs_root_and_of_shards(tmp_path: Path) -> None:
    """The directory of the journals has it, and what uses the directory works as before."""
    fill(tmp_path / "hub" / "berlin.orders", [b'{"id": 5}'])
    (tmp_path / "hub" / ".hub").touch()
    with shard.Writer(shard.Path(tmp_path / "shards", prefix="orders", bits=1)) as writer:
        writer.append(b'{"id": 6}')
    for name in ("hub", "shards"):
        keep_schema(str(tmp_path / name), Fields("id bigint"))
    hub.Store(tmp_path / "hub").close()
    with shard.Writer(shard.Path(tmp_path / "shards", prefix="orders", bits=1)) as writer:
        writer.append(b'{"id": 7}')
    assert rows(tmp_path / "hub", None, columns=["id"]) == [{"id": 5}]
    assert rows(tmp_path / "shards", None, columns=["id"]) == [{"id": 6}, {"id": 7}]


def test_through_a_hub(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    fill(tmp_path / "hub" / "berlin.orders", [as_json(row) for row in ROWS])
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0") as server:
        assert rows("berlin", hub=server.address) == ROWS


@pytest.mark.spark
def test_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = fill(tmp_path / "j", [*map(as_json, ROWS), b"plain text"])
    schema = f"offset bigint, {SCHEMA}, late date, bad_value binary"
    reader = spark.read.format("sej").option("valueFormat", "json")
    found = reader.schema(schema).load(str(path)).orderBy("offset").collect()
    assert [(row.id, row.amount, row.tags, row.ok) for row in found[:4]] == [
        (row["id"], row["amount"], row["tags"], row["ok"]) for row in ROWS
    ]
    assert (found[4].id, bytes(found[4].bad_value)) == (None, b"plain text")
    assert found[0].late is None and found[3].place.x == 3
    dropped = reader.option("valueMode", "drop").schema("id bigint").load(str(path))
    assert sorted(row.id for row in dropped.collect()) == [0, 1, 2, 3]
    with pytest.raises(Exception, match=r"column 'id' comes from the values, so it may be null: leave out NOT NULL"):
        reader.schema("id bigint NOT NULL").load(str(path)).collect()
    with pytest.raises(Exception, match=r"offset 4.*plain text"):
        reader.option("valueMode", "failfast").schema("id bigint").load(str(path)).collect()
    with pytest.raises(Exception, match=r"unknown column 'id'.*needs the option valueFormat"):
        spark.read.format("sej").schema("id bigint").load(str(path)).collect()


@pytest.mark.spark
def test_spark_writes_values_of_columns(spark: SparkSession, tmp_path: Path, described: tuple[Path, Any]) -> None:
    path = fill(tmp_path / "j", [as_json(row) for row in ROWS])
    named = "id bigint, name string, at timestamp, tags array<string>, place struct<x int>, ok boolean"
    names = [*(each.split()[0] for each in named.split(", ")), "key"]
    given = spark.read.format("sej").option("valueFormat", "json").schema(f"{named}, type int").load(str(path))
    given = given.selectExpr(*names[:-1], "concat('k', id) AS key", "type")
    fields = [field for field in AVRO["fields"] if field["name"] != "amount"]
    forms = {"avro": json.dumps({**AVRO, "fields": fields}), "protobuf": f"{described[0]}:shop.Order", "msgpack": None}
    for form, definition in forms.items():
        writer = given.write.format("sej").option("valueFormat", form).mode("append")
        writer = writer if definition is None else writer.option("valueDefinition", definition)
        writer.save(str(tmp_path / form))
        found = rows(tmp_path / form, named, columns=names, format=form, definition=definition, mode="failfast")
        wanted = [{**{name: row[name] for name in names[:-1]}, "key": b"k%d" % row["id"]} for row in ROWS]
        assert sorted(found, key=lambda row: row["id"]) == wanted
    none = (
        given.selectExpr("CAST(NULL AS bigint) AS id", *names[1:-1]).write.format("sej").option("valueFormat", "avro")
    )
    with pytest.raises(Exception, match=r"this row cannot be written as avro: .*'id': None"):
        none.option("valueDefinition", forms["avro"]).mode("append").save(str(tmp_path / "none"))
    for columns in (["id", "'x' AS value"], ["key"]):
        with pytest.raises(Exception, match=r"valueFormat makes the value .* leave out the column value"):
            given.selectExpr(*columns).write.format("sej").option("valueFormat", "msgpack").mode("append").save("x")


def avro_of(kind: Any) -> ValueFormat:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
    return ValueFormat("avro", json.dumps(schema).encode())


def test_messagepack_has_dates_decimals_and_local_times_as_text(tmp_path: Path) -> None:
    row = {
        "day": date(2026, 2, 3),
        "sum": Decimal("1.25"),
        "at": datetime(2026, 2, 3, 4, 5),
        "in": {"n": 1, "days": []},
    }
    schema = "day date, sum decimal(10,2), at timestamp_ntz, in struct<n int, days array<date>>"
    some = [row, {**row, "in": {"n": None, "days": [date(2026, 1, 1)]}}, dict.fromkeys(row)]
    batch = pa.RecordBatch.from_pylist(some, pa.schema(list(arrow_type(f"struct<{schema}>"))))
    values = ValueFormat("msgpack").encoded(batch)
    fill(tmp_path, [*values, values[0].replace(b"2026-02-03", b"2026-13-03")])
    found = rows(tmp_path, schema, columns=list(row), format="msgpack")
    assert found[:3] == some and set(found[3].values()) == {None}


def test_an_avro_map_is_written() -> None:
    batch = pa.record_batch([pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))], ["f"])
    assert avro_of({"type": "map", "values": "long"}).encoded(batch) == [b"\2\2a\2\0"]


@pytest.mark.parametrize(("kind", "value"), [("long", 1.5), ("boolean", "false"), (["null", "int"], 1 << 40)])
def test_a_value_that_avro_would_change_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(FormatError, match="this row cannot be written as avro"):
        avro_of(kind).encoded(pa.record_batch([pa.array([value])], ["f"]))


@pytest.mark.spark
def test_spark_reads_a_kept_schema(spark: SparkSession, tmp_path: Path) -> None:
    path = fill(tmp_path / "j", [*map(as_json, ROWS), b"plain text"])
    keep_schema(str(path), Fields("id bigint, amount decimal(10,2)"))
    found = spark.read.format("sej").load(str(path))
    assert found.columns == [*ONE_SOURCE, "id", "amount", "bad_value"]
    assert [(row.id, row.amount) for row in found.orderBy("offset").collect()] == [
        *((row["id"], row["amount"]) for row in ROWS),
        (None, None),
    ]
    dropped = spark.read.format("sej").option("valueMode", "drop").load(str(path))
    assert dropped.columns[-1] == "amount" and dropped.count() == 4
    chosen = spark.read.format("sej").schema("offset bigint, id bigint").load(str(path)).where("id = offset")
    assert chosen.count() == 4
    query = spark.readStream.format("sej").load(f"file:{path}").writeStream.format("memory").queryName("kept")
    query.trigger(availableNow=True).start().awaitTermination()
    assert spark.sql("SELECT sum(amount) AS s FROM kept").collect()[0].s == Decimal("1.50")
    spark.sql(f"CREATE TABLE typed_orders USING sej OPTIONS (path '{path}')")
    assert spark.sql("SELECT sum(amount) AS s FROM typed_orders").collect()[0].s == Decimal("1.50")
    spark.sql("DROP TABLE typed_orders")
    # A job copies messages: the schema is not its concern.
    assert jobs._Origin(path, None, None, None).load(spark.read).columns == list(ONE_SOURCE)
    (path / "schema.json").write_text("{}")
    with pytest.raises(Exception, match=r"schema.json: not a schema .*write it again with sej schema set"):
        spark.read.format("sej").load(str(path))


def test_a_date_and_bytes_in_json(tmp_path: Path) -> None:
    fill(tmp_path, [b'{"day": "2026-02-03", "raw": "x", "days": ["2026-02-03"]}', b'{"day": "soon"}'])
    found = rows(tmp_path, "day date, raw binary, days array<date>", columns=["day", "raw", "days", "bad_value"])
    day = date(2026, 2, 3)
    assert found[0] == {"day": day, "raw": b"x", "days": [day], "bad_value": None}
    assert found[1]["bad_value"] == b'{"day": "soon"}'
