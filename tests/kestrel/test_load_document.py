"""Loading a libkestrel queue gives what ``docs/formats/kestrel-3.md`` says, also of damaged files.

:func:`loaded` is a decoder of its own, written from that page.
"""

import random
import struct
from pathlib import Path
from typing import NamedTuple

from kestrel import segmented

WRITER, READER = bytes.fromhex("27642603"), bytes.fromhex("263c2603")
Item = tuple[int, int, int | None, int, bytes]
"""Id, add_time, expire_time, error_count, data."""


class Record(NamedTuple):
    position: int
    command: int
    header: bytes
    data: bytes


def records(data: bytes, magic: bytes) -> tuple[list[Record], int | None]:
    """The records of a file, and where its damage begins."""
    if data[:4] != magic:
        return [], 0
    found: list[Record] = []
    at = 4
    while at < len(data) and data[at]:
        command, words = data[at] >> 4, data[at] & 15
        begin = end = at + 1 + 4 * words
        if begin > len(data) or (command >= 8 and not words):
            return found, at
        header = data[at + 1 : begin]
        if command >= 8:
            (size,) = struct.unpack_from("<i", header)
            end += size
            if not 0 <= size <= 16 << 20 or end > len(data):
                return found, at
        if (command, magic) in ((0, READER), (8, WRITER)) and words < (2 if magic == READER else 6):
            return found, at
        if command == 9 and magic == READER and (end - begin) % 8:
            return found, at
        found.append(Record(at, command, header, data[begin:end]))
        at = end
    return found, None


def items(found: list[Record]) -> list[tuple[Item, int]]:
    """The items of a writer file, each with its position."""
    result: list[tuple[Item, int]] = []
    for record in found:
        if record.command == 8:
            _, errors, number, added = struct.unpack_from("<iiqq", record.header)
            expires = struct.unpack_from("<q", record.header, 24)[0] if len(record.header) >= 32 else None
            result.append(((number, added, expires, errors, record.data), record.position))
    return result


def bookmark(found: list[Record]) -> tuple[int, set[int]]:
    head, done = 0, set[int]()
    for record in found:
        if record.command == 0:
            (head,) = struct.unpack_from("<q", record.header)
        elif record.command == 9:
            done.update(struct.unpack(f"<{len(record.data) // 8}q", record.data))
    return head, done


class Loaded(NamedTuple):
    items: list[Item]
    tail: int
    readers: dict[str, tuple[int, set[int]]]
    damage: set[tuple[str, int]]


def loaded(files: dict[str, bytes]) -> Loaded:
    damage: set[tuple[str, int]] = set()
    writers: list[tuple[str, list[tuple[Item, int]]]] = []
    for name in sorted((name for name in files if name[5:].isdecimal()), key=lambda name: int(name[5:])):
        found, broken = records(files[name], WRITER)
        rows = items(found)
        if broken is None:
            while rows and rows[-1][0][0] <= (rows[-2][0][0] if rows[1:] else 0):
                broken = rows.pop()[1]
        if broken is not None:
            damage.add((name, broken))
        if broken != 0:
            writers.append((name, rows))
    if writers:
        name, rows = writers[-1]
        above = max((item[0] for _, others in writers[:-1] for item, _ in others), default=0)
        if len(rows) == 1 and rows[0][0][0] <= above:
            damage = {one for one in damage if one[0] != name} | {(name, 4)}
            rows.clear()
    found_items = [item for _, rows in writers for item, _ in rows]
    first, tail = (pick((item[0] for item in found_items), default=0) for pick in (min, max))
    readers: dict[str, tuple[int, set[int]]] = {}
    for name in files:
        if name.startswith("jobs.read."):
            found, broken = records(files[name], READER)
            damage |= set() if broken is None else {(name, broken)}
            if broken != 0:
                head, done = bookmark(found)
                log, log_done = bookmark(records(files.get(name.replace(".read.", "~~read.", 1), READER), READER)[0])
                head = max(min(max(head, log), tail), first - 1, 0)
                readers[name[10:]] = head, {number for number in done | log_done if head < number <= tail}
    if len(readers) > 1:
        readers.pop("", None)
    return Loaded(sorted(found_items, key=repr), tail, readers, damage)


def put(number: int, dice: random.Random) -> bytes:
    words = dice.choice([6, 6, 6, 7, 8, 8, 10])
    data = dice.randbytes(dice.choice([0, 1, 9]))
    times = struct.pack("<qqqq", dice.choice([0, -1, 10**12]), dice.choice([0, 10**13, -7]), 8, 9)
    return (
        bytes([0x80 + words])
        + struct.pack("<iiq", len(data), dice.choice([0, 3]), number)
        + times[: 4 * words - 16]
        + data
    )


def damaged(data: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(data))
    return dice.choice([
        data, data, data, data[:at], data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :],
        data[:at] + dice.randbytes(5) + data[at:], data[:at] + bytes(9) + data[at + 9 :], data + bytes(20),
    ])  # fmt: skip


def files(dice: random.Random) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    number, skipped = dice.choice([1, 5, 2**40]), [b"\x33" + bytes(12), b"\xf2" + struct.pack("<ii", 3, 9) + b"abc"]
    for time in sorted(dice.sample(range(5, 100), dice.randrange(4))):
        data = WRITER
        for _ in range(dice.randrange(7)):
            data += put(number, dice) if dice.random() < 0.9 else dice.choice(skipped)
            number += dice.choice([1, 1, 1, 1, 2, 0, -1]) if dice.random() < 0.2 else 1
        found[f"jobs.{time}"] = damaged(data, dice)
    for reader in dice.sample(["", "a", "b.c"], dice.randrange(4)):
        for name in (f"jobs.read.{reader}", f"jobs~~read.{reader}")[: dice.randrange(1, 3)]:
            data = READER
            for _ in range(dice.randrange(4)):
                ids = dice.sample(range(-1, 12), dice.randrange(4))
                head = b"\x02" + struct.pack("<q", dice.choice([0, 1, 2, 3, number, number + 5, -1]))
                data += dice.choice([head, b"\x91" + struct.pack(f"<i{len(ids)}q", 8 * len(ids), *ids), *skipped])
            found[name] = damaged(data, dice)
    return found


def test_a_queue_is_what_the_page_says(tmp_path: Path) -> None:
    dice = random.Random(0)
    for turn in range(250):
        path = tmp_path / str(turn)
        path.mkdir()
        there = files(dice)
        for name, data in there.items():
            (path / name).write_bytes(data)
        state = segmented.load(path, "jobs")
        got = [(item.id, item.add_time, item.expire_time, item.error_count, item.data) for item in state.items]
        readers = {name: (one.head, set(one.done)) for name, one in state.readers.items()}
        damage = {(Path(one.path).name, one.position or 0) for one in state.damage}
        assert (sorted(got, key=repr), state.tail_id, readers, damage) == loaded(there)
