"""What the tests of the journal share: messages by hand, journals filled, golden cases copied."""

import base64
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import sej
from sej import Message

GOLDEN = Path(__file__).parent.parent / "golden" / "sej"
STAMP = 1_500_000_000_000_000_000
CALLS: dict[str, Callable[[sej.Writer], object]] = {
    "append": lambda w: w.append(b"v"),
    "append_many": lambda w: w.append_many([b"v"]),
    "append_messages": lambda w: w.append_messages([Message(0, 0, 0, b"", b"")]),
    "append_once": lambda w: w.append_once("n", 2, [b"v"]),
    "append_encoded": lambda w: w.end.append_encoded(b""),
    "flush": lambda w: w.flush(),
    "sync": lambda w: w.sync(),
}
"""What a writer that failed, or is closed, refuses."""


def encoded(offset: int, timestamp: int, type: int, key: bytes, value: bytes) -> bytes:
    """A message by the format table of the SEJ document, byte by byte, without a line of the package."""
    return b"".join(
        (
            offset.to_bytes(8, "big"),
            timestamp.to_bytes(8, "big", signed=True),
            type.to_bytes(1, "big"),
            len(key).to_bytes(1, "big", signed=True),
            key,
            len(value).to_bytes(4, "big", signed=True),
            value,
            (26 + len(key) + len(value)).to_bytes(4, "big", signed=True),
        )
    )


def sample(count: int, start: int = 0, *, size: int = 20) -> list[Message]:
    """Messages with keys, types and times that differ."""
    return [
        Message(n, STAMP + n, n % 256, b"k%d" % n if n % 3 else b"", (b"value %d " % n) * (size // 8))
        for n in range(start, start + count)
    ]


def packed(messages: Iterable[Message]) -> bytes:
    return b"".join(encoded(*message) for message in messages)


def by_hand(path: Path, *segments: tuple[int, bytes]) -> Path:
    """A SEJ directory of segments (first offset, bytes), made without the package."""
    (path / "jnl").mkdir(parents=True, exist_ok=True)
    for first, data in segments:
        segment(path, first).write_bytes(data)
    return path


def segment(path: Path, first: int) -> Path:
    return path / "jnl" / f"{first:016x}.jnl"


def overwrite(file: Path, position: int, data: bytes) -> None:
    """Change bytes of a file; a position below 0 counts from its end."""
    there = bytearray(file.read_bytes())
    at = position % len(there)
    there[at : at + len(data)] = data
    file.write_bytes(there)


def flip(file: Path, position: int, mask: int = 1) -> None:
    """Change bits of one byte of a file."""
    overwrite(file, position, bytes([file.read_bytes()[position] ^ mask]))


def segments(path: Path) -> dict[str, bytes]:
    """Every segment's bytes by name."""
    return {file.name: file.read_bytes() for file in sorted((path / "jnl").iterdir())}


def read_all(path: Path | str, **options: Any) -> list[Message]:
    with sej.Scanner(path, **options) as scanner:
        return list(scanner)


def write(
    path: Path | str, values: Any, keys: Any = None, type: Any = 0, timestamp: Any = None, **options: Any
) -> None:
    """Append values to a journal; the options are those of its writer."""
    with sej.Writer(path, **options) as writer:
        writer.append_many(values, keys, type, timestamp)


def filled(path: Path, count: int = 30, *, segment_bytes: int = 200, first: int = 0) -> Path:
    """A journal of sample messages in small segments."""
    with sej.Writer(path, segment_bytes=segment_bytes, first_offset=first) as writer:
        writer.append_messages(sample(count, start=first))
    return path


def commit(path: Path | str, name: str, offset: int, **options: Any) -> None:
    """Let a reader keep an offset."""
    with sej.Offset(path, name, **options) as kept:
        kept.commit(offset)


def join(path: Path, parts: int | None = None) -> None:
    """Join the first sealed segments, in place: readers with the old files open find another one of the first name."""
    files = sorted((path / "jnl").iterdir())[:-1][:parts]
    joined = path / "joined"
    joined.write_bytes(b"".join(file.read_bytes() for file in files))
    joined.rename(files[0])
    for file in files[1:]:
        file.unlink()


def values(messages: Iterable[Message]) -> list[bytes]:
    return [message.value for message in messages]


def cases() -> list[str]:
    """The golden cases of one SEJ directory; trees of them are for the packages above."""
    return sorted(path.parent.parent.name for path in GOLDEN.glob("*/dir/jnl"))


def manifest(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / case / "expected.json").read_text())
    return found


def expected(rows: Sequence[dict[str, Any]]) -> list[Message]:
    """The messages of a manifest."""
    return [
        Message(
            row["offset"],
            sej.NO_TIMESTAMP if row["timestamp_ns"] is None else row["timestamp_ns"],
            row["type"],
            base64.b64decode(row["key_b64"]),
            base64.b64decode(row["value_b64"]),
        )
        for row in rows
    ]


def golden(case: str, into: Path) -> Path:
    """A copy of a case's directory."""
    target = into / case
    shutil.copytree(GOLDEN / case / "dir", target)
    return target
