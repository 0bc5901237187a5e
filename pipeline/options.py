"""The options of the sources, as a table: name, expected value, default, and the Kafka source's counterpart.

Spark passes options as strings, and their names in any case. A name that is not in the table is an error that suggests
the nearest one; Spark itself would ignore it silently. docs/pipeline.md is tested against this table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from sej.durations import parse_duration
from sej.errors import SejError
from shard.name_format import MAX_BITS


class OptionError(SejError, ValueError):
    """An option or a schema that a source does not accept."""


class Option(NamedTuple):
    """One option.

    Attributes:
        name: as documented; case does not matter.
        takes: turns the text into a value, or raises ValueError with more detail.
        default: the value without the option.
        expected: the expected value, in words.
        kafka: the Kafka source's counterpart, or an empty string.
        meaning: one sentence.
    """

    name: str
    takes: Callable[[str], Any]
    default: Any
    expected: str
    kafka: str
    meaning: str


class Options:
    """Parsed options by name; case does not matter."""

    __slots__ = ("_defaults", "_values")

    def __init__(self, values: dict[str, Any], defaults: dict[str, Any]) -> None:
        """Store values and defaults under lower-case names."""
        self._values = values
        self._defaults = defaults

    def default(self, name: str) -> Any:
        """Return the value without the option."""
        return self._defaults[name.lower()]

    def __getitem__(self, name: str) -> Any:
        """Return the value, or the default."""
        return self._values[name.lower()]

    def get(self, name: str) -> Any:
        """Return the value, or the default; None if the table has no such option."""
        return self._values.get(name.lower())

    def __repr__(self) -> str:
        """Show all options."""
        return f"Options({self._values!r})"


def parse(table: Iterable[Option], given: Mapping[str, str], source: str = "sej") -> Options:
    """Parse the options of a source.

    Raises:
        OptionError: an unknown name, or a value other than the expected.
    """
    known = {option.name.lower(): option for option in table}
    values = {name: option.default for name, option in known.items()}
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
            values[lower] = option.takes(text)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise OptionError(f"option {option.name} must be {option.expected}, got {text!r}{reason}") from error
    return Options(values, {name: option.default for name, option in known.items()})


SPARKS_OWN: Final = frozenset({"path", "paths", "checkpointlocation", "queryname"})
"""Options that Spark adds itself."""


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _one_of(*words: str) -> Callable[[str], str]:
    def takes(text: str) -> str:
        if text.lower() not in words:
            raise ValueError
        return text.lower()

    return takes


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
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _time(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError("the time has no zone") from None
        since = moment - _EPOCH
        return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    return number * 10**6 if abs(number) < _MILLISECONDS_UP_TO else number


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _bits(text: str) -> int:
    number = int(text)
    if not 0 <= number <= MAX_BITS:
        raise ValueError
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not number >= 0:
        raise ValueError
    return number


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_WHOLE = "a whole number of 1 or more"
_TIME = "milliseconds since the epoch (or nanoseconds: from 10^14 on), or an ISO time with its zone"

SEJ: Final = (
    Option(
        "layout",
        _one_of("directory", "shards", "hub"),
        None,
        "directory, shards or hub",
        "",
        "what the path is, if its names cannot tell",
    ),
    Option(
        "pattern",
        str,
        None,
        "a regular expression",
        "subscribePattern",
        "only directories whose whole name matches; a pattern that is not a regular expression is used as a glob",
    ),
    Option(
        "startingOffsets",
        _offsets,
        None,
        'earliest, latest or JSON as {"orders.3.005": 23}',
        "startingOffsets",
        "default: earliest, for streams too; directories missing in the JSON: earliest",
    ),
    Option(
        "endingOffsets",
        _ends,
        "latest",
        'latest or JSON as {"orders.3.005": 23}',
        "endingOffsets",
        "the offset after the last one to read; batch only; directories missing in the JSON: latest",
    ),
    Option(
        "startingTimestamp",
        _time,
        None,
        _TIME,
        "startingTimestamp",
        "start with the first message of this time or later; takes precedence over startingOffsets",
    ),
    Option(
        "endingTimestamp",
        _time,
        None,
        _TIME,
        "endingTimestamp",
        "end before the first message of this time or later; takes precedence over endingOffsets; batch only",
    ),
    Option(
        "minPartitions",
        _count,
        None,
        _WHOLE,
        "minPartitions",
        "split into at least this many partitions, at the start of a block in the index if possible",
    ),
    Option("maxPartitions", _count, None, _WHOLE, "", "pack directories into at most this many partitions"),
    Option(
        "maxMessagesPerTrigger",
        _count,
        None,
        _WHOLE,
        "maxOffsetsPerTrigger",
        "messages in a micro-batch, divided among the directories by their backlog",
    ),
    Option(
        "maxBytesPerTrigger",
        _count,
        None,
        _WHOLE,
        "",
        "bytes in a micro-batch; a larger message is read alone",
    ),
    Option(
        "minOffsetsPerTrigger",
        _count,
        None,
        _WHOLE,
        "minOffsetsPerTrigger",
        "wait until so many messages are there before the next micro-batch, for at most maxTriggerDelay",
    ),
    Option(
        "maxTriggerDelay",
        parse_duration,
        900.0,
        "seconds, or a duration as in 90s or 15m",
        "maxTriggerDelay",
        "how long a micro-batch may wait for minOffsetsPerTrigger",
    ),
    Option(
        "failOnDataLoss",
        _truth,
        True,
        "true or false",
        "failOnDataLoss",
        "fail if messages were deleted, or a journal was truncated, removed or re-created; false: log it and continue",
    ),
    Option(
        "onCorruption",
        _one_of("raise", "skip"),
        "raise",
        "raise or skip",
        "",
        "wrong bytes: raise an error with file and position; skip passes over them, logs each place and counts it",
    ),
    Option(
        "damageReport",
        str,
        None,
        "a directory",
        "",
        "with onCorruption=skip: each task writes a JSON line for each place that it skipped",
    ),
    Option(
        "verify",
        _truth,
        None,
        "true or false",
        "",
        "check each block against its checksum before it is read; default: true, or false with onCorruption=skip,"
        " which would pass over whole blocks",
    ),
    Option(
        "pushFilters",
        _truth,
        False,
        "true or false",
        "",
        "let filters on offset, time, shard, prefix and client limit what is read; for one query of the DataFrame",
    ),
    Option(
        "hub",
        _names,
        (),
        "addresses, host:port, separated by commas",
        "kafka.bootstrap.servers",
        "read from a hub over gRPC, if the executors do not share its disk; the argument of load is then a client,"
        " a sharded journal or a journal, or is omitted",
    ),
    Option("hubToken", str, None, "a token", "kafka.sasl.*", "sent to the hub with every call"),
    Option(
        "hubCa", str, None, "a PEM file, or PEM text", "kafka.ssl.*", "the authority that signed the hub's certificate"
    ),
    Option(
        "hubCertificate",
        str,
        None,
        "a PEM file, or PEM text",
        "kafka.ssl.*",
        "the reader's own certificate, for mutual TLS",
    ),
    Option("hubKey", str, None, "a PEM file, or PEM text", "kafka.ssl.*", "the private key of that certificate"),
    Option("hubServerName", str, None, "a name", "", "the name in the hub's certificate, if it is not the address"),
    Option(
        "hubTls",
        _truth,
        None,
        "true or false",
        "kafka.security.protocol",
        "whether TLS is used; default: true if hubCa, hubCertificate or hubServerName is set",
    ),
    Option(
        "hubRetryFor",
        parse_duration,
        600.0,
        "seconds, or a duration as in 90s or 10m",
        "",
        "how long a hub may be out of reach before a task or a stream fails; each attempt waits longer, up to 10 s",
    ),
    Option(
        "reader",
        str,
        None,
        "a reader's name",
        "kafka.group.id",
        "commit the stream's progress under this name in ofs/, so that retention waits for it; stream only",
    ),
)
"""The options for reading ``sej``."""

_BATCH_ONLY: Final = frozenset({"endingOffsets", "endingTimestamp", "pushFilters"})
_STREAM_ONLY: Final = frozenset(
    {"maxMessagesPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "reader"}
)
READ: Final = tuple(option for option in SEJ if option.name not in _STREAM_ONLY)
STREAM: Final = tuple(option for option in SEJ if option.name not in _BATCH_ONLY)

WRITE: Final = (
    Option(
        "prefix", str, None, "a prefix", "topic", "the shards' prefix; without prefix and bits the path is one journal"
    ),
    Option(
        "bits",
        _bits,
        None,
        "a number from 0 to 10",
        "",
        "2**bits shards, routed by xxhash64(key), or by another hash if one was stored when the sharded journal was"
        " created",
    ),
    Option(
        "txnAppId",
        str,
        None,
        "a name",
        "",
        "identifies the numbered batches of this job; a stream gets a name from its checkpoint; a batch job needs"
        " txnAppId and txnVersion to be idempotent",
    ),
    Option(
        "txnVersion",
        _number,
        None,
        "a number of 0 or more",
        "",
        "the number of a batch job: if a job with this number was written before, its rows are not written again",
    ),
    Option("segmentBytes", _count, 1 << 30, _WHOLE, "", "the size at which a journal's segment ends"),
    Option("lockTimeout", _seconds, 60.0, "seconds", "", "how long a commit waits for another writer of a journal"),
    Option(
        "discardReaders",
        _names,
        (),
        "names, separated by commas",
        "",
        "overwrite although these readers have not read everything",
    ),
    Option(
        "expectedOffsets",
        _expected,
        None,
        'JSON as {"orders.3.005": 23}',
        "",
        "overwrite only if each directory's next offset is this one: messages appended in the meantime fail the job",
    ),
    Option(
        "hub",
        _names,
        (),
        "addresses, host:port, separated by commas",
        "kafka.bootstrap.servers",
        "write through a hub over gRPC: the argument of save is then a client id, and prefix is required",
    ),
    *(option for option in SEJ if option.name.startswith("hub") and option.name != "hub"),
)
"""The options for writing ``sej``."""

_TXN: Final = tuple(option for option in WRITE if option.name in ("txnAppId", "txnVersion"))
TEXTQUEUE_READ: Final[tuple[Option, ...]] = ()
"""The options for reading ``textqueue``: none."""
TEXTQUEUE_WRITE: Final = _TXN
"""The options for writing ``textqueue``."""
KESTREL_READ: Final = (
    Option("queue", str, None, "a queue's name", "subscribe", "which queue of the directory"),
    Option(
        "kind",
        _one_of("kestrel", "libkestrel"),
        None,
        "kestrel or libkestrel",
        "",
        "the format; default: detected from the files",
    ),
    Option("reader", str, None, "a reader's name", "", "for libkestrel: only items that this reader has not confirmed"),
    Option(
        "onCorruption",
        _one_of("raise", "skip"),
        "raise",
        "raise or skip",
        "",
        "damaged files: raise an error, or read each up to its damage and log it",
    ),
)
"""The options for reading ``kestrel``."""
