"""The options of the sources, as tables: name, expected value, default. docs/pipeline.md shows their comments.

Spark passes options as strings, and their names in any case. A name that is not in the table is an error that suggests
the nearest one; Spark itself would ignore it silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from sej.checks import parse_duration
from sej.errors import SejError
from shard.routing import MAX_BITS


class OptionError(SejError, ValueError):
    """An option or a schema that a source does not accept."""


class FormatError(SejError, ValueError):
    """A value does not fit the schema that was given for it."""


class Fields(NamedTuple):
    """Which fields of the values are columns: the arguments of :func:`pipeline.table` with these names."""

    schema: str | None = None
    format: str = "json"
    definition: str | None = None
    mode: str = "permissive"


class Kind(NamedTuple):
    """What an option takes: a function that turns the text into a value, or raises ValueError; and what it expects."""

    takes: Callable[[str], Any]
    expected: str


class Option(NamedTuple):
    """One option: its name (case does not matter), what it takes, and the value without it."""

    name: str
    kind: Kind
    default: Any = None


Options = dict[str, Any]
"""Parsed options by name, with those that were not given."""


def parse(table: Iterable[Option], given: Mapping[str, str], source: str = "sej") -> Options:
    """Parse the options of a source.

    Raises:
        OptionError: an unknown name, or a value other than the expected.
    """
    known = {option.name.lower(): option for option in table}
    values = {option.name: option.default for option in known.values()}
    for name, text in given.items():
        lower = name.lower()
        if lower in SPARKS_OWN:
            continue
        option = known.get(lower)
        if option is None:
            near = get_close_matches(lower, known, 1)
            hint = (
                f"; did you mean {known[near[0]].name!r}?" if near else f": it has {', '.join(o.name for o in table)}"
            )
            raise OptionError(f"the source {source!r} has no option {name!r} here{hint}")
        try:
            values[option.name] = option.kind.takes(text)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise OptionError(f"option {option.name} must be {option.kind.expected}, got {text!r}{reason}") from error
    return values


SPARKS_OWN: Final = frozenset({"path", "paths", "checkpointlocation", "queryname"})
"""Options that Spark adds itself."""


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _number(low: float, high: float = float("inf"), kind: type = int) -> Callable[[str], Any]:
    def takes(text: str) -> Any:
        number = kind(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return takes


def _one_of(*words: str) -> Kind:
    def takes(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return Kind(takes, f"{', '.join(words[:-1])} or {words[-1]}")


def _offsets(text: str) -> str | dict[str, int]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("the JSON is not an object")
    for name, offset in found.items():
        if type(offset) is not int or offset < -2:
            raise ValueError(f"{name!r} must be an offset, -2 (earliest) or -1 (latest), got {offset!r}")
    return found


def _expected(text: str) -> dict[str, int]:
    found = _offsets(text)
    if isinstance(found, str) or any(offset < 0 for offset in found.values()):
        raise ValueError("expected each directory's own offset, at least 0")
    return found


def _ends(text: str) -> str | dict[str, int]:
    found = _offsets(text)
    if found == "earliest" or (isinstance(found, dict) and -2 in found.values()):
        raise ValueError("reading cannot end at earliest (-2): nothing would be read")
    return found


_MILLISECONDS_UP_TO: Final = 10**14
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def ns_of(moment: datetime) -> int:
    """Return nanoseconds since the epoch of a time with a zone, which has microseconds."""
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000


def _time(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("the time has no zone") from None
        return ns_of(moment)
    return number * 10**6 if abs(number) < _MILLISECONDS_UP_TO else number


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _text(expected: str) -> Kind:
    return Kind(str, expected)


VALUE_FORMATS: Final = ("json", "avro", "msgpack", "protobuf")
"""What values can be."""
VALUE_MODES: Final = ("permissive", "failfast", "drop")
"""What happens to a value that does not fit the schema."""

_COUNT: Final = Kind(_number(1), "a whole number of 1 or more")
_FLAG: Final = Kind(_truth, "true or false")
_TIME: Final = Kind(_time, "milliseconds since the epoch (or nanoseconds: from 10^14 on), or an ISO time with its zone")
_DURATION: Final = "seconds, or a duration as in"
_PEM: Final = _text("a PEM file, or PEM text")
_READER: Final = _text("a reader's name")
_HOW: Final = _one_of("raise", "skip")

_HUB: Final = (
    # Read or write through a hub over gRPC. The path is then a client, a sharded journal or a journal there, or
    # omitted; to write, a client id, and prefix is required. Kafka: kafka.bootstrap.servers
    Option("hub", Kind(_names, "addresses, host:port, separated by commas"), ()),
    # Sent to the hub with every call. Kafka: kafka.sasl.*
    Option("hubToken", _text("a token")),
    # The authority that signed the hub's certificate. Kafka: kafka.ssl.*
    Option("hubCa", _PEM),
    # The client's own certificate, for mutual TLS. Kafka: kafka.ssl.*
    Option("hubCertificate", _PEM),
    # The private key of that certificate. Kafka: kafka.ssl.*
    Option("hubKey", _PEM),
    # The name in the hub's certificate, if it is not the address.
    Option("hubServerName", _text("a name")),
    # Whether TLS is used. Default: true if hubCa, hubCertificate or hubServerName is set. Kafka:
    # kafka.security.protocol
    Option("hubTls", _FLAG),
    # How long a hub may be out of reach before a task or a stream fails. Each attempt waits longer, up to 10 s.
    Option("hubRetryFor", Kind(parse_duration, f"{_DURATION} 90s or 10m"), 600.0),
)
_BATCH: Final = (
    # The offset after the last one to read; batch only. Directories missing in the JSON: latest. Kafka: endingOffsets
    Option("endingOffsets", Kind(_ends, 'latest or JSON as {"orders.3.005": 23}'), "latest"),
    # End before the first message of this time or later; takes precedence over endingOffsets; batch only. Kafka:
    # endingTimestamp
    Option("endingTimestamp", _TIME),
    # Let filters on offset, time, shard, prefix and client limit what is read; for one query of the DataFrame; batch
    # only.
    Option("pushFilters", _FLAG, False),
)
_STREAM: Final = (
    # Messages in a micro-batch, divided among the directories by their backlog; stream only. Kafka:
    # maxOffsetsPerTrigger
    Option("maxMessagesPerTrigger", _COUNT),
    # Bytes in a micro-batch; a larger message is read alone; stream only.
    Option("maxBytesPerTrigger", _COUNT),
    # Commit the progress under this name in ofs/, so that retention waits for it; stream only. Kafka: kafka.group.id
    Option("reader", _READER),
)
_BOTH: Final = (
    # What the path is, if its names cannot tell.
    Option("layout", _one_of("directory", "shards", "hub")),
    # Only directories whose whole name matches; a pattern that is not a regular expression is used as a glob. Kafka:
    # subscribePattern
    Option("pattern", _text("a regular expression")),
    # Default: earliest, for streams too. Directories missing in the JSON: earliest. Kafka: startingOffsets
    Option("startingOffsets", Kind(_offsets, 'earliest, latest or JSON as {"orders.3.005": 23}')),
    # Start with the first message of this time or later; takes precedence over startingOffsets. Kafka:
    # startingTimestamp
    Option("startingTimestamp", _TIME),
    # Split into at least this many partitions, at the start of a block in the index if possible. Kafka: minPartitions
    Option("minPartitions", _COUNT),
    # Pack directories into at most this many partitions.
    Option("maxPartitions", _COUNT),
    # Fail if messages were deleted, or a journal was truncated, removed or re-created; false: log it and continue.
    # Kafka: failOnDataLoss
    Option("failOnDataLoss", _FLAG, True),
    # Wrong bytes: raise an error with file and position; skip passes over them, logs each place and counts it.
    Option("onCorruption", _HOW, "raise"),
    # With onCorruption=skip: each task writes a JSON line for each place that it skipped.
    Option("damageReport", _text("a directory")),
    # Check each block against its checksum before it is read: 8 to 15 % of the time from files. Default: true, or false
    # with onCorruption=skip: in a wrong block of 256 KiB no message is provably whole, so none would be read.
    Option("verify", _FLAG),
    # What the values are: columns of the schema that a journal does not have are read from their fields. Spark: the
    # formats json and avro
    Option("valueFormat", _one_of(*VALUE_FORMATS)),
    # Of avro: the schema that the values were written with, as JSON or a file. Of protobuf: FILE:MESSAGE, a file as
    # protoc --include_imports --descriptor_set_out=FILE writes it.
    Option("valueDefinition", _text("a schema of Avro, or FILE:MESSAGE")),
    # A value that does not fit: its columns are null and bad_value has its bytes (permissive), the read fails
    # (failfast), or its row is left out (drop). Spark: mode
    Option("valueMode", _one_of(*VALUE_MODES), "permissive"),
    *_HUB,
)
READ: Final = (*_BOTH, *_BATCH)
STREAM: Final = (*_BOTH, *_STREAM)
SEJ: Final = (*_BOTH, *_BATCH, *_STREAM)
"""The options for reading ``sej``: a batch, a stream, and both."""

_TXN: Final = (
    # Identifies the numbered batches of this job. A stream gets a name from its checkpoint.
    Option("txnAppId", _text("a name")),
    # The number of a batch job: if a job with this number was written before, its rows are not written again.
    Option("txnVersion", Kind(_number(0), "a number of 0 or more")),
)
WRITE: Final = (
    # Make the value of the other columns, as fields of it. As JSON: to_json(struct(...)) AS value
    Option("valueFormat", _one_of("avro", "msgpack", "protobuf")),
    # The schema of the values, as for reading.
    Option("valueDefinition", _text("a schema of Avro, or FILE:MESSAGE")),
    # The shards' prefix; without prefix and bits the path is one journal. Kafka: topic
    Option("prefix", _text("a prefix")),
    # 2**bits shards, routed by xxhash64(key), or by another hash if one was stored when the sharded journal was
    # created.
    Option("bits", Kind(_number(0, MAX_BITS), "a number from 0 to 10")),
    *_TXN,
    # The size at which a journal's segment ends.
    Option("segmentBytes", _COUNT, 1 << 30),
    # How long a commit waits for another writer of a journal.
    Option("lockTimeout", Kind(_number(0, kind=float), "seconds"), 60.0),
    # Overwrite although these readers have not read everything.
    Option("discardReaders", Kind(_names, "names, separated by commas"), ()),
    # Overwrite only if each directory's next offset is this one: messages appended in the meantime fail the job.
    Option("expectedOffsets", Kind(_expected, 'JSON as {"orders.3.005": 23}')),
    *_HUB,
)
"""The options for writing ``sej``."""

TEXTQUEUE_READ: Final[tuple[Option, ...]] = ()
"""The options for reading ``textqueue``: none."""
TEXTQUEUE_WRITE: Final = _TXN
"""The options for writing ``textqueue``."""
KESTREL_READ: Final = (
    # Which queue of the directory. Kafka: subscribe
    Option("queue", _text("a queue's name")),
    # The format. Default: detected from the files.
    Option("kind", _one_of("kestrel", "libkestrel")),
    # For libkestrel: only items that this reader has not confirmed.
    Option("reader", _READER),
    # Damaged files: raise an error, or read each up to its damage and log it.
    Option("onCorruption", _HOW, "raise"),
)
"""The options for reading ``kestrel``."""
