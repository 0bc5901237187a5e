"""The options of the sources, as tables: name, expected value, default. docs/pipeline.md says what each one does.

Spark passes options as strings, and their names in any case. A name that is not in the table is an error that suggests
the nearest one; Spark itself would ignore it silently.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from sej.durations import parse_duration
from sej.errors import SejError
from shard.routing import MAX_BITS


class OptionError(SejError, ValueError):
    """An option or a schema that a source does not accept."""


class Kind(NamedTuple):
    """What an option takes: a function that turns the text into a value, or raises ValueError; and what it expects."""

    takes: Callable[[str], Any]
    expected: str


class Option(NamedTuple):
    """One option: its name (case does not matter), what it takes, and the value without it."""

    name: str
    kind: Kind
    default: Any = None


class Options(dict[str, Any]):
    """Parsed options, under lower-case names; case does not matter."""

    def __getitem__(self, name: str) -> Any:
        """Return the value, or the default."""
        return super().__getitem__(name.lower())


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
            values[lower] = option.kind.takes(text)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise OptionError(f"option {option.name} must be {option.kind.expected}, got {text!r}{reason}") from error
    return Options(values)


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


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _text(expected: str) -> Kind:
    return Kind(str, expected)


_COUNT: Final = Kind(_number(1), "a whole number of 1 or more")
_FLAG: Final = Kind(_truth, "true or false")
_TIME: Final = Kind(_time, "milliseconds since the epoch (or nanoseconds: from 10^14 on), or an ISO time with its zone")
_DURATION: Final = "seconds, or a duration as in"
_PEM: Final = _text("a PEM file, or PEM text")
_READER: Final = _text("a reader's name")
_HOW: Final = _one_of("raise", "skip")

_HUB: Final = (
    Option("hub", Kind(_names, "addresses, host:port, separated by commas"), ()),
    Option("hubToken", _text("a token")),
    Option("hubCa", _PEM),
    Option("hubCertificate", _PEM),
    Option("hubKey", _PEM),
    Option("hubServerName", _text("a name")),
    Option("hubTls", _FLAG),
    Option("hubRetryFor", Kind(parse_duration, f"{_DURATION} 90s or 10m"), 600.0),
)
_BATCH: Final = (
    Option("endingOffsets", Kind(_ends, 'latest or JSON as {"orders.3.005": 23}'), "latest"),
    Option("endingTimestamp", _TIME),
    Option("pushFilters", _FLAG, False),
)
_STREAM: Final = (
    Option("maxMessagesPerTrigger", _COUNT),
    Option("maxBytesPerTrigger", _COUNT),
    Option("reader", _READER),
)
_BOTH: Final = (
    Option("layout", _one_of("directory", "shards", "hub")),
    Option("pattern", _text("a regular expression")),
    Option("startingOffsets", Kind(_offsets, 'earliest, latest or JSON as {"orders.3.005": 23}')),
    Option("startingTimestamp", _TIME),
    Option("minPartitions", _COUNT),
    Option("maxPartitions", _COUNT),
    Option("failOnDataLoss", _FLAG, True),
    Option("onCorruption", _HOW, "raise"),
    Option("damageReport", _text("a directory")),
    Option("verify", _FLAG),
    *_HUB,
)
READ: Final = (*_BOTH, *_BATCH)
STREAM: Final = (*_BOTH, *_STREAM)
SEJ: Final = (*_BOTH, *_BATCH, *_STREAM)
"""The options for reading ``sej``: a batch, a stream, and both."""

_TXN: Final = (Option("txnAppId", _text("a name")), Option("txnVersion", Kind(_number(0), "a number of 0 or more")))
WRITE: Final = (
    Option("prefix", _text("a prefix")),
    Option("bits", Kind(_number(0, MAX_BITS), "a number from 0 to 10")),
    *_TXN,
    Option("segmentBytes", _COUNT, 1 << 30),
    Option("lockTimeout", Kind(_number(0, kind=float), "seconds"), 60.0),
    Option("discardReaders", Kind(_names, "names, separated by commas"), ()),
    Option("expectedOffsets", Kind(_expected, 'JSON as {"orders.3.005": 23}')),
    *_HUB,
)
"""The options for writing ``sej``."""

TEXTQUEUE_READ: Final[tuple[Option, ...]] = ()
"""The options for reading ``textqueue``: none."""
TEXTQUEUE_WRITE: Final = _TXN
"""The options for writing ``textqueue``."""
KESTREL_READ: Final = (
    Option("queue", _text("a queue's name")),
    Option("kind", _one_of("kestrel", "libkestrel")),
    Option("reader", _READER),
    Option("onCorruption", _HOW, "raise"),
)
"""The options for reading ``kestrel``."""
