"""The records of libkestrel's files: magics, commands and limits, and nothing else.

Source: "Journal file format" (Kestrel 3), and the program itself for what the document does not say: a command byte of
0 ends a file, and no data block is over 16 MiB. The magics are big endian, everything else is little endian and signed.
``docs/formats/kestrel-3.md`` shows this table and is tested against it.

A record is a command byte (four bits of command, four bits of header size in words of 4 bytes), the header, and for
commands of 8 and above as many bytes of data as the first word of the header says.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

READ_HEAD: Final = 0
PUT: Final = 8
READ_DONE: Final = 9
DATA_COMMANDS: Final = 8
"""Commands from here on are followed by data."""
END_BYTE: Final = 0
MAX_DATA_SIZE: Final = 16 << 20
MAX_ID: Final = 2**63 - 1

WORD: Final = struct.Struct("<i")
WORD_SIZE: Final = 4
ID: Final = struct.Struct("<q")
ID_SIZE: Final = 8


class Command(NamedTuple):
    """One known record.

    Attributes:
        command: the upper four bits of the first byte.
        name: as the document writes it.
        file: ``writer`` or ``reader``, in which it counts.
        words: the header sizes that are written.
        fields: the header's fields with their width in bytes.
    """

    command: int
    name: str
    file: str
    words: tuple[int, ...]
    fields: tuple[tuple[str, int], ...]

    def byte(self, words: int) -> int:
        """Return the command byte for a header of this many words."""
        return self.command << 4 | words


COMMANDS: Final = {
    record.command: record
    for record in (
        Command(READ_HEAD, "READ_HEAD", "reader", (2,), (("id", 8),)),
        Command(
            PUT,
            "PUT",
            "writer",
            (6, 8),
            (("size", 4), ("error_count", 4), ("id", 8), ("add_time", 8), ("expire_time", 8)),
        ),
        Command(READ_DONE, "READ_DONE", "reader", (1,), (("size", 4),)),
    )
}

PUT_BYTE: Final = COMMANDS[PUT].byte(6)
PUT_EXPIRING_BYTE: Final = COMMANDS[PUT].byte(8)
HEAD_BYTE: Final = COMMANDS[READ_HEAD].byte(2)
DONE_BYTE: Final = COMMANDS[READ_DONE].byte(1)

PUT_HEAD: Final = struct.Struct("<Biiqq")
"""command byte, size, error_count, id, add_time"""
PUT_EXPIRING_HEAD: Final = struct.Struct("<Biiqqq")
"""command byte, size, error_count, id, add_time, expire_time"""
HEAD_RECORD: Final = struct.Struct("<Bq")
"""command byte, id"""
DONE_HEAD: Final = struct.Struct("<Bi")
"""command byte, size"""

assert (PUT_BYTE, PUT_EXPIRING_BYTE, HEAD_BYTE, DONE_BYTE) == (0x86, 0x88, 0x02, 0x91)
assert PUT_HEAD.size == 1 + 6 * WORD_SIZE
assert PUT_EXPIRING_HEAD.size == 1 + 8 * WORD_SIZE
