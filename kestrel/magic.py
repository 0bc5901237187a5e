"""The first bytes of a file of libkestrel, which distinguish the two formats.

The magics are big endian. A file of Kestrel 2 begins with an opcode, which is at most 9.
"""

from typing import Final

WRITER_MAGIC: Final = bytes.fromhex("27642603")
READER_MAGIC: Final = bytes.fromhex("263C2603")
MAGIC_SIZE: Final = 4
