"""Argument checks: one rule for each kind of argument, applied when the caller passes it.

:func:`require` checks several arguments, so that a constructor checks all of them before it has any effect. A name that
has one meaning everywhere has its rule in :data:`RULES`. Any other argument is passed with its rule::

    require(path=path, timeout=timeout, threads=(threads, between(1, 64)))

A value of the wrong type is a :class:`TypeError`, one out of its range a :class:`ValueError`. The text is always ``NAME
must be WHAT, got VALUE``. A ``bool`` is not a number here, and NaN is not a number of seconds.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, Self, TypeVar

from sej.message import MAX_OFFSET, Message, Start

if TYPE_CHECKING:
    import random

Rule = Callable[[str, Any], None]
"""A function of an argument's name and value that raises if the value cannot be used."""

_SHOWN_CHARS: Final = 80
_PATHS: Final = str, os.PathLike


def optional(rule: Rule) -> Rule:
    """Allow None, or a value that the rule allows."""

    def check(name: str, value: Any) -> None:
        if value is not None:
            rule(name, value)

    return check


def between(least: int, most: int | None = None, kind: str = "an int") -> Rule:
    """Allow an int from least to most; kind: what the error says if it is not an int."""
    expected = f"at least {least}" if most is None else f"{least} to {most}"

    def check(name: str, value: Any) -> None:
        if type(value) is not int:
            try:
                operator.index(value)
            except TypeError:
                refuse_type(name, kind, value)
            if isinstance(value, bool):
                refuse_type(name, kind, value)
        if value < least or (most is not None and value > most):
            raise ValueError(f"{name} must be {expected}, got {_shown(value)}")

    return check


def _number(name: str, value: Any) -> None:
    kind = type(value)
    if kind is float or kind is int:
        return
    from numbers import Real

    if kind is bool or not isinstance(value, Real):
        refuse_type(name, "a number of seconds", value)


def _seconds_rule(expected: str, fits: Callable[[Any], bool]) -> Rule:
    def check(name: str, value: Any) -> None:
        _number(name, value)
        if not fits(value):
            raise ValueError(f"{name} must be {expected}, got {_shown(value)}")

    return check


def _path(name: str, value: Any) -> None:
    if not isinstance(value, _PATHS) or not isinstance(path := os.fspath(value), str):
        refuse_type(name, "a str or a path object", value)
    if not path or "\0" in path:
        problem = "an empty path" if not path else _shown(path)
        raise ValueError(f"{name} must be the path of a file or directory ('.' is the current one), got {problem}")


def _callable(name: str, value: Any) -> None:
    if not callable(value):
        refuse_type(name, "a function", value)


def handler_of(*parameters: str) -> Rule:
    """Allow a callable of these parameters that has done its work when it returns.

    The call of a coroutine function or a generator runs nothing. A function of other parameters would fail for every
    message, until all of them are dead letters.

    Example:
        >>> handler_of("item")("handler", lambda: None)
        Traceback (most recent call last):
            ...
        TypeError: handler must be a function that can be called with (item), got <lambda>()
    """

    def check(name: str, value: Any) -> None:
        from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction, signature

        _callable(name, value)
        for function in (value, type(value).__call__):
            if iscoroutinefunction(function):
                refuse_type(name, "a function without `async`, as in lambda item: asyncio.run(handle(item))", value)
            if isgeneratorfunction(function) or isasyncgenfunction(function):
                refuse_type(name, "a function without `yield`: a call would not run it", value)
        try:
            takes = signature(value)
        except (TypeError, ValueError):
            return  # a builtin may not tell
        try:
            takes.bind(*parameters)
        except TypeError:
            expected = f"a function that can be called with ({', '.join(parameters)})"
            got = getattr(value, "__name__", type(value).__name__)
            raise TypeError(f"{name} must be {expected}, got {got}{takes}") from None

    return check


ANY_SECONDS: Final = _seconds_rule("a number of seconds", lambda seconds: seconds == seconds)
"""A number of seconds; a deadline below 0 has passed already."""
SECONDS: Final = _seconds_rule("0 seconds or more", lambda seconds: seconds >= 0)
"""A number of seconds, at least 0; infinity means no limit."""
POSITIVE_SECONDS: Final = _seconds_rule("more than 0 seconds", lambda seconds: seconds > 0)
"""A number of seconds above 0; infinity means no limit."""
PATH: Final[Rule] = _path
"""A ``str`` or a path object. Not empty: an empty path would mean the current directory."""
CALLABLE: Final[Rule] = _callable
"""A callable."""


def instance_of(*kinds: type) -> Rule:
    """Allow an instance of one of these types; a bool counts only as a bool."""
    expected = " or ".join(kind.__name__ for kind in kinds)

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            refuse_type(name, expected, value)

    return check


FLAG: Final = instance_of(bool)
"""True or False."""
TEXT: Final = instance_of(str)
"""A ``str``; the function that uses it checks its content."""
COUNT: Final = between(0)
"""An int, at least 0."""
POSITIVE: Final = between(1)
"""An int, at least 1."""
OFFSET: Final = between(0, MAX_OFFSET)
"""The offset of a message."""
WAIT: Final = optional(SECONDS)
"""Seconds to wait; None waits without a limit."""


def _start(name: str, value: Any) -> None:
    if not isinstance(value, Start):
        if not isinstance(value, int) or isinstance(value, bool):
            refuse_type(name, "an int, sej.FIRST or sej.LAST", value)
        OFFSET(name, value)


TIMESTAMP: Final = between(-(2**63), 2**63 - 1, "an int, nanoseconds since the epoch")
"""Nanoseconds since the epoch, or NO_TIMESTAMP."""
START: Final[Rule] = _start
"""An offset, FIRST or LAST."""


def one_of(choices: Iterable[Any], why: str = "") -> Rule:
    """Allow one of these values; the error for any other ends with ``why``, or with the closest match."""
    known = tuple(choices)
    expected = f"one of {', '.join(map(repr, known))}"

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str):
            refuse_type(name, expected, value)
        if value not in known:
            raise ValueError(f"{name} must be {expected}, got {_shown(value)}{why or _meant(value, known)}")

    return check


def _iterable(name: str, value: Any) -> None:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        kinds = {"values": " of bytes", "keys": " of bytes", "messages": " of sej.Message"}
        refuse_type(name, f"an iterable{kinds.get(name, ', such as a list')}", value)


ITERABLE: Final[Rule] = _iterable
"""An iterable that is not a ``str`` or ``bytes``."""


def require_messages(messages: Iterable[Message]) -> list[Message]:
    """Return messages as a list.

    Raises:
        TypeError: this is not an iterable of messages.
    """
    ITERABLE("messages", messages)
    found = list(messages)
    if found and set(map(type, found)) != {Message}:
        for message in found:
            require_message(message)
    return found


def require_message(message: object) -> None:
    """Check one of several messages. An object of another class must have the attributes.

    Raises:
        TypeError: it is not a message.
    """
    if type(message) is not Message and not all(hasattr(message, name) for name in Message._fields):
        refuse_type("each message", "a sej.Message", message)


def refuse_coroutine(result: object) -> None:
    """Refuse the result of a handler that calls a coroutine function but does not run it, as a lambda may do.

    Raises:
        TypeError: it is a coroutine.
    """
    if isinstance(result, CoroutineType):
        result.close()  # no warning that it was never awaited
        raise TypeError("the handler returned a coroutine, which does not run by itself; call asyncio.run with it")


def is_failure(error: BaseException) -> bool:
    """Return whether an exception of a handler is a failed attempt, and the next message may be handled.

    A handler that runs coroutines raises asyncio's CancelledError if one of them was cancelled. That is not an
    Exception, but it ends no program.
    """
    asyncio = sys.modules.get("asyncio.exceptions")  # only that module raises it, and its import takes long
    return isinstance(error, Exception) or (asyncio is not None and isinstance(error, asyncio.CancelledError))


class Failure(str):
    """Why an attempt failed, in short: the type and the text of an exception."""

    __slots__ = ("_error",)
    _error: BaseException

    def __new__(cls, error: BaseException) -> Self:
        """Create the text."""
        self = super().__new__(cls, f"{type(error).__name__}: {error}")
        self._error = error
        return self

    @property
    def traceback(self) -> str:
        """The traceback of the exception."""
        from traceback import format_exception

        return "".join(format_exception(self._error))


def reason_of(reason: object) -> str:
    """Return the reason that a caller gives: a text, or an exception.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(reason, BaseException):
        return Failure(reason)
    if not isinstance(reason, str):
        refuse_type("reason", "a str or an exception", reason)
    return reason


def require_columns(values: Any, keys: Any, type: Any, timestamp: Any) -> None:
    """Check the arguments of a method that appends many messages; the elements are checked when they are encoded.

    Raises:
        TypeError: values or keys are not iterable, or type or timestamp is neither a number nor an iterable.
    """
    require(values=values, keys=keys)
    for name, value in (("type", type), ("timestamp", timestamp)):
        fine = isinstance(value, int) or (value is None and name == "timestamp")
        if not fine and (isinstance(value, str) or not isinstance(value, Iterable)):
            refuse_type(name, "an int or a sequence of ints", value)


def with_methods(what: str, *methods: str) -> Rule:
    """Allow any object that has these methods."""

    def check(name: str, value: Any) -> None:
        missing = [method for method in methods if not callable(getattr(value, method, None))]
        if missing or isinstance(value, type):
            refuse_type(name, f"{what}, with {', '.join(methods)}", value)

    return check


DISK: Final = with_methods("a disk", "open", "status", "rename")
"""A disk: :data:`sej.system.disk.OS`, or an object with its methods."""


_NAMES: Final[Mapping[Rule, str]] = {
    PATH: "path root directory database",
    optional(PATH): "dead_letter archive_to client_ca metrics to",
    TEXT: "name address client_id url prefix app on_revert",
    optional(TEXT): "token backend cron timezone schedule pattern master",
    FLAG: "wait verify dry_run accept_gaps compress block utc until_empty allow_plaintext allow_network_fs "
    "drop_oldest discard_oldest",
    optional(FLAG): "create",
    COUNT: "sample maxsize journal_bytes keep_bytes compact_bytes min_free_bytes max_memory_bytes max_journal_bytes",
    optional(COUNT): "max_bytes max_errors reader_max_lag_bytes",
    POSITIVE: "max_open max_attempts max_messages max_message_bytes memory_bytes segment_bytes keep_segments "
    "batch_messages batch_rows commit_messages per_key",
    optional(POSITIVE): "concurrency",
    OFFSET: "offset",
    optional(OFFSET): "after",
    START: "default",
    SECONDS: "backoff_s backoff_max_s max_backoff_s commit_interval_s dedupe_window_s lateness_s grace_s "
    "compact_delay_s checkpoint_s batch_age_s",
    optional(SECONDS): "timeout delay_s max_age_s open_timeout_s reader_max_age",
    POSITIVE_SECONDS: "lease_s timeout_s keepalive_s",
    optional(POSITIVE_SECONDS): "every time_limit_s",
    ITERABLE: "values messages texts variables",
    optional(ITERABLE): "keys dedupe_keys indexes columns",
    CALLABLE: "now_ns now_ms on_retry",
    optional(CALLABLE): "progress on_progress on_expired on_given_up on_time_limit read_back report known",
    DISK: "disk",
    one_of(("raise", "skip")): "on_corruption",
    with_methods("a clock", "boot_ns", "wall_ns", "boot_id"): "clock",
}
RULES: Final[Mapping[str, Rule]] = {name: rule for rule, names in _NAMES.items() for name in names.split()}
"""The rules of arguments by name. A function whose argument of such a name has another rule calls that rule itself."""


def require(**arguments: Any) -> None:
    """Check arguments: the value of a name in :data:`RULES`, or ``name=(value, rule)``.

    Raises:
        TypeError: a value has the wrong type.
        ValueError: a value is out of its range.

    Example:
        >>> require(segment_bytes=0)
        Traceback (most recent call last):
            ...
        ValueError: segment_bytes must be at least 1, got 0
    """
    for name, value in arguments.items():
        if name in RULES:
            RULES[name](name, value)
        else:
            value, rule = value
            rule(name, value)


@cache
def options_of(*functions: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the keyword-only parameters of these functions."""
    import inspect

    return tuple(
        name
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    )


def refuse_pickling(self: object) -> NoReturn:
    """Refuse to be pickled: to be set as ``__reduce__`` by a class that holds files and locks.

    Raises:
        TypeError: always.
    """
    kind = type(self)
    raise TypeError(
        f"a {kind.__module__.partition('.')[0]}.{kind.__qualname__} cannot be pickled or copied: it holds files,"
        " locks or threads of this process; send its path and open it again in the other process"
    )


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str], opening: Iterable[str] = ()) -> None:
    """Refuse unknown options, and suggest the closest one of those and of ``opening``, which the caller has taken.

    Raises:
        TypeError: an option is unknown.

    Example:
        >>> refuse_unknown("a queue", ["lease"], ["lease_s", "max_attempts"])
        Traceback (most recent call last):
            ...
        TypeError: a queue has no option 'lease'; did you mean 'lease_s'? It has lease_s, max_attempts
    """
    options = tuple(known)
    for name in given:
        if name not in options:
            options = (*opening, *options)
            meant = _meant(name, options) or ";"
            raise TypeError(f"{what} has no option {name!r}{meant}{' It' if '?' in meant else ' it'} has"
                            f" {', '.join(options)}")  # fmt: skip


def _meant(value: str, known: Iterable[Any]) -> str:
    from difflib import get_close_matches

    names = [name for name in known if isinstance(name, str)]
    close = get_close_matches(value, names, 1, 0.65) or [name for name in names if value and name.startswith(value)][:1]
    return f"; did you mean {close[0]!r}?" if close else ""


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def refuse_type(name: str, expected: str, value: Any) -> NoReturn:
    """Raise a ``TypeError`` that says what was expected."""
    got = "None" if value is None else f"{_shown(value)} ({type(value).__name__})"
    raise TypeError(f"{name} must be {expected}, got {got}")


def backoff(failures: int, first_s: float, longest_s: float, rng: random.Random | None = None) -> float:
    """Return the seconds to wait after this many failures in a row: half of the doubled wait, or more."""
    import random  # here, because few processes wait

    return min(first_s * 2.0 ** min(failures - 1, 60), longest_s) * (rng or random).uniform(0.5, 1.0)


class Span(Protocol):
    """A :class:`datetime.timedelta`, or an object with its method."""

    def total_seconds(self) -> float:
        """Return the seconds."""


Seconds = float | str | Span
"""A number of seconds, a duration such as ``"3s"``, ``"1h30m"`` or ``"7d"``, or a :class:`datetime.timedelta`."""

_DURATION: Final = r"(\d+(?:\.\d+)?)\s*(seconds?|sec|s|minutes?|min|m|hours?|h|days?|d|weeks?|w)"
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_T = TypeVar("_T")


def parse_duration(text: str) -> float:
    """Return seconds: ``90``, ``90s``, ``36h``, ``1h30m``, ``7d``.

    Raises:
        ValueError: the text is not a duration.

    Example:
        >>> parse_duration("1h30m"), parse_duration("2 days")
        (5400.0, 172800.0)
    """
    text = text.strip().lower()
    try:
        seconds = float(text)
    except ValueError:
        parts = re.findall(_DURATION, text)
        if not parts or re.sub(_DURATION, "", text).strip():
            raise ValueError(f"{text!r} is not a duration; expected 90s, 30m, 1h30m, 7d or 2w") from None
        return float(sum(float(number) * _SECONDS[unit[0]] for number, unit in parts))
    if not 0 <= seconds < float("inf"):
        raise ValueError(f"{text!r} is not a duration: it must be at least 0")
    return seconds


def seconds(name: str, value: str | Span | _T) -> float | _T:
    """Return the seconds of an argument that is a duration; any other value is returned as it is, for a rule to check.

    Raises:
        ValueError: it is a text and not a duration.

    Example:
        >>> seconds("timeout", "3s"), seconds("timeout", 0.5), seconds("timeout", None)
        (3.0, 0.5, None)
        >>> seconds("timeout", "soon")
        Traceback (most recent call last):
            ...
        ValueError: timeout must be a number of seconds, or a duration such as '90s', '1h30m' or '7d', got 'soon'
    """
    if not isinstance(value, str):
        span = getattr(value, "total_seconds", None)
        return value if span is None else span()  # type: ignore[return-value]
    try:
        return parse_duration(value)
    except ValueError:
        shown = repr(value[:80])
        raise ValueError(
            f"{name} must be a number of seconds, or a duration such as '90s', '1h30m' or '7d', got {shown}"
        ) from None
