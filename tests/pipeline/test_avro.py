"""Avro that is decoded in step is what fastavro decodes value by value, also if values are cut or changed."""

import io
import itertools
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import avro, values
from pipeline.columns import arrow_type

names = itertools.count()
TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
MILLIS = TIMES.map(lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000))
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}
DECIMALS = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda number: Decimal(number).scaleb(-2))
Typed = tuple[Any, str, st.SearchStrategy[Any]]


def long(logical: str) -> dict[str, str]:
    return {"type": "int" if logical == "date" else "long", "logicalType": logical}


def named(**given: Any) -> dict[str, Any]:
    return {**given, "name": f"named{next(names)}"}


SIMPLE: list[Typed] = [
    ("long", "bigint", st.integers(-(2**63), 2**63 - 1)),
    ("long", "int", st.integers(-(2**31), 2**31 - 1)),
    ("int", "bigint", st.integers(-(2**31), 2**31 - 1)),
    ("boolean", "boolean", st.booleans()),
    ("float", "float", st.floats(width=32, allow_nan=False)),
    ("double", "double", st.floats(allow_nan=False)),
    ("string", "string", st.text(max_size=9)),
    ("bytes", "binary", st.binary(max_size=9)),
    (named(type="fixed", size=3), "binary", st.binary(min_size=3, max_size=3)),
    (named(type="enum", symbols=["A", "B"]), "string", st.sampled_from(["A", "B"])),
    (DECIMAL, "decimal(12,2)", DECIMALS),
    (DECIMAL, "decimal(20,4)", DECIMALS),
    (named(**{**DECIMAL, "type": "fixed", "size": 7}), "decimal(12,2)", DECIMALS),
    (long("timestamp-micros"), "timestamp", TIMES),
    (long("timestamp-millis"), "timestamp", MILLIS),
    (long("local-timestamp-micros"), "timestamp_ntz", TIMES.map(lambda time: time.replace(tzinfo=None))),
    (long("date"), "date", st.dates(date(1900, 1, 1), date(2200, 1, 1))),
]
PASSED: list[Typed] = [
    ({"type": "map", "values": ["null", "long"]}, "", st.dictionaries(st.text(max_size=2), st.none() | st.just(7))),
    ({"type": "string", "logicalType": "uuid"}, "", st.uuids()),
    ("null", "", st.none()),
]
"""Types that no column has: they are passed over."""
SLOWLY: list[Typed] = [
    (["null", "long", "string"], "bigint", st.none() | st.just(5)),
    ("float", "double", st.just(1.5)),
    ("string", "binary", st.text(max_size=3)),
]
"""What fastavro reads alone."""


def record(fields: list[Typed]) -> Typed:
    columns = [{"name": f"f{number}", "type": schema} for number, (schema, _, _) in enumerate(fields)]
    kinds = ", ".join([*(f"f{number} {each[1]}" for number, each in enumerate(fields) if each[1]), "lacking int"])
    rows = st.fixed_dictionaries({f"f{number}": made for number, (_, _, made) in enumerate(fields)})
    return named(type="record", fields=columns), f"struct<{kinds}>", rows


def listed(item: Typed) -> Typed:
    return {"type": "array", "items": item[0]}, f"array<{item[1]}>" if item[1] else "", st.lists(item[2], max_size=4)


def optional(inner: Typed, first: bool) -> Typed:
    branches = ["null", inner[0]] if first else [inner[0], "null"]
    return branches, inner[1], st.none() | inner[2]


typed = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: st.one_of(
        inner.map(listed),
        st.lists(inner | st.sampled_from(PASSED), min_size=1, max_size=3).map(record),
        st.tuples(inner.filter(lambda each: not isinstance(each[0], list)), st.booleans()).map(lambda p: optional(*p)),
    ),
    max_leaves=4,
)
records = st.lists(typed | st.sampled_from([*PASSED, *SLOWLY]), min_size=1, max_size=5).map(record)


def uncopied(schema: Any, seen: set[str]) -> Any:
    """Return a schema in which a name is defined once."""
    if isinstance(schema, list):
        return [uncopied(each, seen) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if (name := schema.get("name")) in seen and "type" in schema and schema["type"] in ("record", "enum", "fixed"):
        return name
    seen |= {name} if name else set()
    found = {
        key: uncopied(value, seen) if key in ("type", "items", "values") else value for key, value in schema.items()
    }
    if "fields" in found:
        found["fields"] = [{**each, "type": uncopied(each["type"], seen)} for each in found["fields"]]
    return found


def plain(schema: Any) -> Any:
    """Return a schema without its logical types."""
    if isinstance(schema, dict):
        return {key: plain(value) for key, value in schema.items() if key != "logicalType"}
    return [plain(each) for each in schema] if isinstance(schema, list) else schema


def is_whole(schema: Any, value: bytes) -> bool:
    file = io.BytesIO(value)
    fastavro.schemaless_reader(file, fastavro.parse_schema(plain(schema)), None, handle_unicode_errors="ignore")
    return file.tell() == len(value)


@given(made=records, data=st.data())
def test_values_decoded_in_step_are_those_of_fastavro(made: Typed, data: st.DataObject) -> None:
    schema, kind, rows = uncopied(made[0], set()), made[1], made[2]
    parsed = fastavro.parse_schema(schema)
    encoded = []
    for row in data.draw(st.lists(rows, min_size=1, max_size=8)):
        file = io.BytesIO()
        fastavro.schemaless_writer(file, parsed, row)
        value = file.getvalue()
        change = data.draw(st.sampled_from(["", "", "", "cut", "more", "flip"]))
        at = data.draw(st.integers(0, max(len(value) - 1, 0)))
        if change == "cut":
            value = value[:at]
        elif change == "more":
            value += value[:at] or b"\0"
        elif change == "flip" and value:
            value = value[:at] + bytes([value[at] ^ 1 << data.draw(st.integers(0, 7))]) + value[at + 1 :]
        encoded.append(value)
    columns = pa.schema(list(arrow_type(kind)))
    given = values.ValueFormat("avro", json.dumps(schema).encode())

    def fitted() -> tuple[list[dict[str, Any]], set[int]]:
        array = pa.array([b"before", *encoded], pa.binary()).slice(1)
        found, reasons = values._fitted(array, columns, values._avro(given, columns), 1 << 13)
        found.validate(full=True)
        return found.to_pylist(), set(reasons)

    in_step, bad = fitted()
    with pytest.MonkeyPatch.context() as patch:

        def never(*_: Any) -> None:
            raise avro.NotInStepError

        patch.setattr(values, "in_step", never)
        alone, wrong = fitted()
    assert bad <= wrong
    for number, value in enumerate(encoded):
        if number in bad or number not in wrong:
            assert repr(in_step[number]) == repr(alone[number])  # NaN is not equal to itself
        else:  # such as a time after the year 9999, which Python cannot hold, or a text that is not read
            assert is_whole(schema, value)


@example(count=avro._ITEMS_MAX + 1)
@example(count=avro._ITEMS_MAX)
@given(count=st.integers(0, 3))
def test_long_arrays(count: int) -> None:
    schema = record([listed(SIMPLE[0])])[0]
    encoded = []
    for row in ({"f0": [*range(count)]}, {"f0": [1]}):
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(schema), row)
        encoded.append(file.getvalue())
    encoded.append(b"\x01\x02\x05\x00")  # a block with its size in bytes
    columns = pa.schema([("f0", pa.list_(pa.int64()))])
    rows = values._avro(values.ValueFormat("avro", json.dumps(schema).encode()), columns)
    found, reasons = values._fitted(pa.array(encoded, pa.binary()), columns, rows, 1 << 13)
    assert (found["f0"].to_pylist(), reasons) == ([[*range(count)], [1], [-3]], {})


def test_values_with_long_arrays_are_not_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def in_step(*given: Any) -> Any:
        read = avro.in_step(*given)

        def columns(array: pa.Array) -> list[pa.Array]:
            tried.append(len(array))
            return read(array)

        return columns

    monkeypatch.setattr(values, "in_step", in_step)
    schema = {"type": "record", "name": "Long", "fields": [{"name": "f", "type": listed(SIMPLE[3])[0]}]}
    encoded = b"\xda\x04" + b"\1" * 301 + b"\0"
    columns = pa.schema([("f", pa.list_(pa.bool_()))])
    rows = values._avro(values.ValueFormat("avro", json.dumps(schema).encode()), columns)
    found, reasons = values._fitted(pa.array([encoded] * 8, pa.binary()), columns, rows, 1 << 13)
    assert (found["f"].to_pylist(), reasons, tried) == ([[True] * 301] * 8, {}, [8])
