"""Columns from the values of messages: JSON, Avro, MessagePack or Protocol Buffers.

A schema names the columns that a journal does not have itself; each is the field of that name in the value. Many values
are converted as one. If that fails, each half of them is, until the values that do not fit are found.

JSON is parsed by Arrow, from the values joined by line ends. A value that is one object cannot be confused with its
neighbours: each line begins with a brace, and neither an object nor a text can have a brace after a line end.

Avro is decoded by :mod:`pipeline.avro`, if it can, or else like the others: their libraries make a Python object of
each value, and of each of its columns that is read one Arrow array is made. They allow nothing after a value, so its
end is exact. What limits them are these objects.
"""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa

from pipeline.avro import NotInStepError, in_step
from pipeline.columns import SEJ, columns_of
from pipeline.needs import needed
from pipeline.options import Fields, FormatError, OptionError, Options

BAD: Final = "bad_value"
"""The column with the bytes of a value that does not fit; null in other rows."""
_log = logging.getLogger("pipeline")
_Rows = Callable[[pa.Array], pa.RecordBatch]
_UNFIT: Final = (
    *(ValueError, TypeError, LookupError, EOFError, OverflowError, MemoryError, StopIteration),
    *(NotImplementedError, RecursionError, pa.ArrowException),
)
"""What the libraries raise if a value is not what they expect."""
_OBJECTS: Final = 1 << 10
"""Values that are objects at the same time: more of them would be visited by the garbage collector."""
_AT_ONCE: Final = {"json": 1 << 16, "avro": 1 << 13}
"""Values that are parsed as one by Arrow, or decoded in step."""
_SHOWN_BYTES: Final = 60
_MISFITS: Final = "%s: values that are not %s with these columns: %d, the first at offset %d"


class ValueFormat(NamedTuple):
    """How values become columns.

    Attributes:
        form: the format of the values: json, avro, msgpack or protobuf.
        definition: of Avro, the schema that the values were written with, as JSON; of Protocol Buffers, the descriptor
            set; as bytes.
        message: of Protocol Buffers, the full name of the message.
        mode: what happens to a value that does not fit: its columns are null (``permissive``), the read fails
            (``failfast``), or its row is left out (``drop``).
    """

    form: str
    definition: bytes = b""
    message: str = ""
    mode: str = "permissive"

    def inner(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the journal that are needed for these columns."""
        kept = [field for field in schema if field.name in SEJ]
        names = {field.name for field in kept}
        if len(kept) < len(schema):
            kinds = {"offset": pa.int64(), "value": pa.binary()}
            kept += [pa.field(name, kind) for name, kind in kinds.items() if name not in names]
        return pa.schema(kept)

    def converted(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, path: str) -> Iterator[pa.RecordBatch]:
        """Yield batches with the columns of the journal as batches of a schema, and log how many values did not fit.

        Raises:
            FormatError: a value does not fit, and the mode is ``failfast``.
        """
        made = pa.schema([field.with_nullable(True) for field in schema if field.name not in SEJ and field.name != BAD])
        if len(made) == 0 and BAD not in schema.names:
            yield from batches
            return
        rows = _FORMATS[self.form](self, made)
        at_once = _AT_ONCE.get(self.form, _OBJECTS)
        count, first = 0, 0
        for batch in batches:
            values = batch.column("value")
            columns, reasons = _fitted(values, made, rows, at_once)
            if reasons:
                bad, reason = min(reasons.items())
                offset = batch.column("offset")[bad].as_py()
                if self.mode == "failfast":
                    raise FormatError(self._said(values[bad].as_py(), reason), path=path, offset=offset)
                count, first = count + len(reasons), first if count else offset
            good = pa.array([row not in reasons for row in range(batch.num_rows)]) if reasons else None
            arrays = [
                _bad(values, good) if field.name == BAD
                else batch.column(field.name) if field.name in SEJ
                else columns.column(field.name)
                for field in schema
            ]  # fmt: skip
            made_of = pa.RecordBatch.from_arrays(arrays, schema=schema)
            if good is not None and self.mode == "drop":
                made_of = made_of.filter(good)
            if made_of.num_rows:
                yield made_of
        if count:
            _log.warning(_MISFITS, path, self.form, count, first)

    def encoded(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return each row as a value whose fields are the columns.

        Raises:
            FormatError: a row does not fit.
        """
        batch = batch.rename_columns([_field(name) for name in batch.schema.names])
        rows = batch.to_pylist(maps_as_pydicts="strict" if "map<" in str(batch.schema) else None)  # it takes longer
        encode = _ENCODERS[self.form](self, batch.schema)
        values = []
        for row in rows:
            try:
                values.append(encode(row))
            except _UNFIT as error:
                reason = " ".join(str(error).split())
                raise FormatError(f"this row cannot be written as {self.form}: {reason}; it is {row!r}") from error
        return values

    def _said(self, value: bytes, reason: str) -> str:
        shown = value[:_SHOWN_BYTES]
        return (
            f"the value is not {self.form} with these columns: {reason}; it is {shown!r}"
            f"{'...' if len(value) > len(shown) else ''}; correct the schema, or read with the mode permissive or drop"
        )


def value_format(fields: Fields, names: tuple[str, str]) -> ValueFormat:
    """Return how values become columns, with the files of the definition read.

    Args:
        fields: format, definition and mode; the schema is not used.
        names: what the caller calls format and definition.

    Raises:
        OptionError: the definition is missing or wrong.
        ModuleNotFoundError: the library for the format is not installed.
    """
    form, definition = fields.format, fields.definition
    expected = {"avro": "an Avro schema, as JSON or a file", "protobuf": "FILE:MESSAGE, of a descriptor set"}.get(form)
    if (definition is None) != (expected is None):
        raise OptionError(
            f"{names[0]}={form} needs {names[1]}: {expected}" if expected else f"{names[0]}={form} takes no {names[1]}"
        )
    given, message = definition or "", ""
    if form == "protobuf":
        given, _, message = given.rpartition(":")
    is_file = form == "protobuf" or (form == "avro" and os.path.isfile(given))
    content = Path(given).read_bytes() if is_file else given.encode()
    found = ValueFormat(form, content, message, fields.mode)
    try:
        _FORMATS[form](found, pa.schema([]))
    except _UNFIT as error:
        raise OptionError(f"{names[1]}={definition!r}: expected {expected} ({error})") from error
    return found


def values_of(options: Options) -> ValueFormat | None:
    """Return how values become columns by the options of a source; None: they do not."""
    if options["valueFormat"] is None:
        return None
    fields = Fields(None, options["valueFormat"], options["valueDefinition"], options["valueMode"])
    return value_format(fields, ("valueFormat", "valueDefinition"))


def value_columns(fields: Fields) -> dict[str, str]:
    """Return the columns of values, with that of the values that do not fit if the mode is ``permissive``."""
    bad = {BAD: "binary"} if fields.mode == "permissive" else {}
    return {**typed_columns(fields.schema or ""), **bad}


def typed_columns(schema: str) -> dict[str, str]:
    """Return the columns of a schema for values.

    Raises:
        OptionError: it cannot be parsed, or has a column that a journal has itself.
    """
    columns = columns_of(schema)
    for name in columns:
        if name in SEJ or name == BAD:
            raise OptionError(
                f"the schema has the column {name!r}, which every journal has; name it value_{name} for the field"
                f" {name!r} of the value"
            )
    return columns


def _field(name: str) -> str:
    """Return the field that a column is read from."""
    rest = name.removeprefix("value_")
    return rest if rest in SEJ or rest == BAD else name


def _fitted(values: pa.Array, schema: pa.Schema, rows: _Rows, at_once: int) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return the columns of values, null for those that do not fit; and why not, by row."""
    found: list[pa.RecordBatch] = []
    reasons: dict[int, str] = {}
    begins = range(0, len(values), at_once)
    waiting = [(begin, min(begin + at_once, len(values))) for begin in reversed(begins)]
    while waiting:
        begin, end = waiting.pop()
        try:
            found.append(rows(values[begin:end]))
        except _UNFIT as error:
            if end - begin == 1:
                reasons[begin] = " ".join(str(error).split())
                found.append(pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema))
            else:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
    if len(schema) == 0:  # only which values fit is needed
        return pa.RecordBatch.from_pylist([{}] * len(values), schema), reasons
    return (found[0] if len(found) == 1 else pa.concat_batches(found)), reasons


def _bad(values: pa.Array, good: pa.Array | None) -> pa.Array:
    if good is None:
        return pa.nulls(len(values), pa.binary())
    import pyarrow.compute as pc

    return pc.if_else(good, pa.scalar(None, pa.binary()), values)


def _json(_: ValueFormat, schema: pa.Schema) -> _Rows:
    import pyarrow.compute as pc
    import pyarrow.json

    def rows(values: pa.Array) -> pa.RecordBatch:
        text = pc.ascii_trim_whitespace(values.cast(pa.string()))
        if not pc.all(pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))).as_py():
            raise ValueError("it is not an object")
        lists = pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), pc.replace_substring(text, "\n", " "))
        lines = pc.binary_join(lists, "\n")[0].as_buffer()
        fields = [(_field(field.name), _as_text(field.type, _is_text_in_json)) for field in schema]
        found = pyarrow.json.read_json(
            pa.py_buffer(lines),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(fields or [("", pa.null())]), unexpected_field_behavior="ignore"
            ),
        )
        if found.num_rows != len(values):
            raise ValueError("it is more than one object")
        arrays = [found.column(_field(field.name)).cast(field.type).combine_chunks() for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return rows


def _as_text(kind: pa.DataType, is_text: Callable[[pa.DataType], bool]) -> pa.DataType:
    """Return the type to read, which is cast to this one: text for the types that are text in a format."""
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type, is_text))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type, is_text)) for field in kind])
    return pa.string() if is_text(kind) else kind


def _is_text_in_json(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_binary(kind))


def _is_text_in_msgpack(kind: pa.DataType) -> bool:
    """Return whether MessagePack has no such type, so that msgspec writes text."""
    is_local = pa.types.is_timestamp(kind) and kind.tz is None
    return bool(is_local or pa.types.is_date(kind) or pa.types.is_decimal(kind))


def _each(
    schema: pa.Schema,
    decode: Callable[[bytes], Any],
    column: Callable[[list[Any], pa.Field], pa.Array],
    wrong: type[Exception] = ValueError,
) -> _Rows:
    """Return a function that decodes values to objects, and makes each column of all objects."""

    def rows(values: pa.Array) -> pa.RecordBatch:
        try:
            found = list(map(decode, values.to_pylist()))
        except wrong as error:
            raise ValueError(str(error)) from error
        return pa.RecordBatch.from_arrays([column(found, field) for field in schema], schema=schema)

    return rows


def _msgpack(_: ValueFormat, schema: pa.Schema) -> _Rows:
    with needed("formats"):
        import msgspec
    names = {field.name: f"column_{number}" for number, field in enumerate(schema)}
    fields = {name: _field(column) for column, name in names.items()}
    row = msgspec.defstruct("Row", [(name, Any, None) for name in fields], rename=fields, gc=False)

    def column(found: list[Any], field: pa.Field) -> pa.Array:
        values = list(map(attrgetter(names[field.name]), found))
        try:
            return pa.array(values, field.type)
        except pa.ArrowException:
            return pa.array(values, _as_text(field.type, _is_text_in_msgpack)).cast(field.type)

    return _each(schema, msgspec.msgpack.Decoder(row).decode, column, msgspec.DecodeError)


def _avro(given: ValueFormat, schema: pa.Schema) -> _Rows:
    with needed("formats"):
        import fastavro
    named: dict[str, Any] = {}
    written = fastavro.parse_schema(json.loads(given.definition), named_schemas=named)

    def decoded(value: bytes) -> Any:
        file = io.BytesIO(value)
        found = fastavro.schemaless_reader(file, written, None)
        if file.tell() != len(value):
            raise ValueError(f"bytes follow the record: it has {file.tell()} of {len(value)}")
        if not isinstance(found, dict):
            raise ValueError("it is not a record with fields")
        return found

    def column(found: list[Any], field: pa.Field) -> pa.Array:
        name = _field(field.name)
        return pa.array([row.get(name) for row in found], field.type)

    single = _each(schema, decoded, column)
    try:
        together = in_step(written, named, {_field(field.name): field.type for field in schema})
    except NotInStepError:
        return single

    def rows(values: pa.Array) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_arrays(together(values), schema=schema)
        except NotInStepError:
            pass  # half of the values would hardly be another case: each try is hundreds of steps
        except _UNFIT:
            if len(values) > 1:
                raise
        return single(values)  # or what is wrong with the value

    return rows


def _protobuf(given: ValueFormat, schema: pa.Schema) -> _Rows:
    with needed("formats"):
        from google.protobuf.message import DecodeError
    kind = _message(given)

    def column(found: list[Any], field: pa.Field) -> pa.Array:
        return _column(found, kind.DESCRIPTOR, _field(field.name), field.type)

    return _each(schema, kind.FromString, column, DecodeError)


def _message(given: ValueFormat) -> Any:
    """Return the class of the messages of Protocol Buffers."""
    with needed("formats"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(given.definition).file:
            pool.Add(file)
    except message.DecodeError as error:
        raise ValueError(str(error)) from error
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(given.message))


def _column(messages: Sequence[Any], descriptor: Any, name: str, kind: pa.DataType) -> pa.Array:
    """Return a field of messages of Protocol Buffers as a column; null where a field with presence is not set."""
    field = descriptor.fields_by_name.get(name)
    if field is None:
        return pa.nulls(len(messages), kind)
    values = list(map(attrgetter(name), messages))
    if field.is_repeated:
        if not pa.types.is_list(kind) or (field.message_type and field.message_type.GetOptions().map_entry):
            raise TypeError(f"field {name!r} is repeated, and a column of it must be an array; maps are not supported")
        ends = pa.array(accumulate(map(len, values), initial=0), pa.int32())
        return pa.ListArray.from_arrays(ends, _array(list(chain.from_iterable(values)), field, kind.value_type), kind)
    if field.has_presence:
        values = [value if each.HasField(name) else None for value, each in zip(values, messages, strict=True)]
    return _array(values, field, kind)


def _array(values: list[Any], field: Any, kind: pa.DataType) -> pa.Array:
    """Return values of a field of Protocol Buffers; a Timestamp as a time, an enum as its name."""
    if field.enum_type is not None:
        known = field.enum_type.values_by_number
        values = [None if value is None else known[value].name for value in values]
    if field.message_type is None:
        return pa.array(values, kind)
    if field.message_type.full_name == "google.protobuf.Timestamp":
        times = [None if value is None else value.ToMicroseconds() for value in values]
        return pa.array(times, pa.int64()).view(pa.timestamp("us", "UTC")).cast(kind)
    if not pa.types.is_struct(kind):
        raise ValueError(f"field {field.name!r} is a message")
    present = [value for value in values if value is not None]
    if not present:
        return pa.nulls(len(values), kind)
    empty = type(present[0])()
    messages = [empty if value is None else value for value in values]
    columns = [_column(messages, field.message_type, each.name, each.type) for each in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=pa.array([value is None for value in values]))


_FORMATS: Final[dict[str, Callable[[ValueFormat, pa.Schema], _Rows]]] = {
    "json": _json,
    "avro": _avro,
    "msgpack": _msgpack,
    "protobuf": _protobuf,
}


def _to_msgpack(_: ValueFormat, __: pa.Schema) -> Callable[[Any], bytes]:
    with needed("formats"):
        import msgspec
    return msgspec.msgpack.Encoder().encode


def _to_avro(given: ValueFormat, columns: pa.Schema) -> Callable[[Any], bytes]:
    with needed("formats"):
        import fastavro
        from fastavro.validation import ValidationError, validate
    named: dict[str, Any] = {}
    schema = fastavro.parse_schema(json.loads(given.definition), named_schemas=named)
    try:
        in_step(schema, named, {field.name: field.type for field in columns})
        are_read = True
    except NotInStepError:
        are_read = False

    def encode(row: Any) -> bytes:
        if not are_read:  # as these types: fastavro writes 1.5 as the long 1, and any text as true
            try:
                validate(row, schema)
            except ValidationError as error:
                raise ValueError(str(error)) from error
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, row, strict=True)
        return file.getvalue()

    return encode


def _to_protobuf(given: ValueFormat, _: pa.Schema) -> Callable[[Any], bytes]:
    kind = _message(given)
    return lambda row: cast("bytes", kind(**row).SerializeToString())


_ENCODERS: Final = {"avro": _to_avro, "msgpack": _to_msgpack, "protobuf": _to_protobuf}
