"""The arguments of an append, which both twins of the codec check here, and the errors of a buffer."""

from __future__ import annotations

from sej.codec.format import (
    MAX_KEY_SIZE,
    MAX_MESSAGE_SIZE,
    MAX_OFFSET,
    MAX_TIMESTAMP,
    MAX_TYPE,
    NO_TIMESTAMP,
    OVERHEAD_SIZE,
)
from sej.errors import ConflictError, InvalidMessageError, LockedError

_type = type


def as_bytes(value: object, name: str) -> bytes:
    """Return a key or value as bytes.

    Raises:
        TypeError: it is something else.
    """
    if _type(value) is bytes:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    hint = f": encode it first, for example {name}.encode()" if isinstance(value, str) else ""
    raise TypeError(f"{name} must be bytes, got {_type(value).__name__}{hint}")


def check_message(key: bytes, value: bytes, type: int, timestamp: int) -> None:
    """Check the fields of a message.

    Raises:
        TypeError: type or timestamp is not an int.
        InvalidMessageError: a field is out of its range.
    """
    if not isinstance(type, int):
        raise TypeError(f"type must be an int from 0 to {MAX_TYPE}, got {_type(type).__name__}")
    if not isinstance(timestamp, int):
        raise TypeError(f"timestamp must be an int, nanoseconds since the epoch, got {_type(timestamp).__name__}")
    if len(key) > MAX_KEY_SIZE:
        raise InvalidMessageError(
            f"the key must have at most {MAX_KEY_SIZE} bytes, got {len(key)}; shorten it, or put it into the value"
        )
    if not 0 <= type <= MAX_TYPE:
        raise InvalidMessageError(f"type must be 0 to {MAX_TYPE}, got {type}")
    if not NO_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise InvalidMessageError(f"timestamp must fit 64 bits, nanoseconds since the epoch, got {timestamp}")
    size = OVERHEAD_SIZE + len(key) + len(value)
    if size > MAX_MESSAGE_SIZE:
        raise InvalidMessageError(
            f"the message must have at most {MAX_MESSAGE_SIZE} bytes, got {size}; split the value"
        )


def as_expected(expect_offset: object) -> int:
    """Return the offset that an append expects to get, or -1 if it expects none.

    Raises:
        TypeError: it is not an int.
        ValueError: it is not an offset.
    """
    if expect_offset is None:
        return -1
    if not isinstance(expect_offset, int) or isinstance(expect_offset, bool):
        raise TypeError(f"expect_offset must be an int, the next offset, got {_type(expect_offset).__name__}")
    if not 0 <= expect_offset <= MAX_OFFSET:
        raise ValueError(f"expect_offset must be 0 to {MAX_OFFSET}, got {expect_offset}")
    return expect_offset


def conflict(path: str | None, expected: int, found: int) -> ConflictError:
    """The error for an append whose condition does not hold."""
    return ConflictError(
        f"expected {expected} to be the next offset, but it is {found}, so nothing was appended: read what was appended"
        " in between, decide again, and append with the new offset",
        path=path,
        expected=expected,
        found=found,
    )


def nested() -> LockedError:
    """The error for a signal handler that appends during a call of its own thread."""
    return LockedError("this thread is already in an append; a signal handler cannot append then")


def full() -> InvalidMessageError:
    """The error for a message beyond the largest offset, which must leave room for the next one."""
    return InvalidMessageError(
        f"the journal has reached its largest offset, {MAX_OFFSET - 1}; continue in another journal"
    )
