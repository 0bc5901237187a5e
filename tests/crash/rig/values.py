"""Values that contain their number, so that a test can recognise each value that it finds on a medium."""

from typing import Final

MARKER: Final = "POISONED"
"""Fills what a test lets the device refuse."""
POISON_BYTES: Final = 9000
"""At least one block of the disk is nothing but a part of it, and no other value is as long."""
_FILLER: Final = "abcdefghijklmnopqrstuvwxyz0123456789"


def value(number: int, *, poison: bool = False) -> bytes:
    """The value of that number; a poison covers at least one whole block of the disk."""
    size = POISON_BYTES if poison else (40, 400, 3000)[number % 3]
    filler = MARKER if poison else _FILLER[number % 36 :] + _FILLER[: number % 36]
    head = f"{number:08d} {'p' if poison else 'v'} "
    return (head + filler * (size // len(filler) + 1))[:size].encode()


def number_of(data: bytes) -> int:
    """Return the number of a value.

    Raises:
        AssertionError: the data is not a value.
    """
    head = data[:11].decode(errors="replace").split()
    assert len(head) == 2 and head[0].isdigit() and head[1] in "pv", f"{data[:20]!r} is not a value"
    number = int(head[0])
    assert data == value(number, poison=head[1] == "p"), f"value {number} has wrong bytes"
    return number
