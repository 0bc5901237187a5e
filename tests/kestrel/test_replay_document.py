"""A replay gives what ``docs/formats/kestrel-2.md`` says, also of damaged files.

:func:`replay` is a decoder of its own, written from that page, for the opcodes of all versions.
"""

import random
import struct
from pathlib import Path

import kestrel

Item = tuple[bytes, int | None, int]
ADD, REMOVE, ADDX, REMOVE_TENTATIVE, SAVE_XID, UNREMOVE, CONFIRM_REMOVE, ADD_XID, CONTINUE, REMOVE_TENTATIVE_XID = (
    range(10)
)
XIDS = [0, 1, 2, 3, -1, -(2**31), 2**31 - 1]


class State:
    """The content of a queue."""

    def __init__(self) -> None:
        self.items: list[tuple[Item, int]] = []
        """Each with the xid of its ADD_XID, or 0."""
        self.open: dict[int, Item] = {}
        self.last_xid = 0

    def next_xid(self) -> int:
        while True:
            self.last_xid = self.last_xid + 1 if self.last_xid < 2**31 - 1 else -(2**31)
            if self.last_xid and self.last_xid not in self.open:
                return self.last_xid

    def apply(self, opcode: int, xid: int, item: Item | None) -> None:
        if item is not None:
            if opcode == CONTINUE:
                self.open.pop(xid, None)
            self.items.append((item, xid if opcode == ADD_XID else 0))
        elif opcode == SAVE_XID:
            self.last_xid = xid
        elif opcode == UNREMOVE and xid in self.open:
            self.items.insert(0, (self.open.pop(xid), 0))
        elif opcode == CONFIRM_REMOVE:
            self.open.pop(xid, None)
        elif opcode in (REMOVE, REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID):
            head, own = self.items.pop(0) if self.items else (None, 0)
            if opcode == REMOVE_TENTATIVE_XID:
                self.last_xid = xid
            elif opcode == REMOVE_TENTATIVE:
                xid = own or self.next_xid()
            if head is not None and opcode != REMOVE:
                self.open[xid] = head


def is_dump(data: bytes, at: int, count: int) -> bool:
    """Whether exactly count pairs of ADD_XID and REMOVE_TENTATIVE, and then the end of the file, are at a position."""
    for _ in range(count):
        if at + 9 > len(data) or data[at] != ADD_XID:
            return False
        (size,) = struct.unpack_from("<i", data, at + 5)
        at += 9 + size
        if size < 16 or at >= len(data) or data[at] != REMOVE_TENTATIVE:
            return False
        at += 1
    return at == len(data)


def read(data: bytes, state: State) -> int | None:
    """Apply the operations of a file; return where its damage begins, or None."""
    at = 0
    while at < len(data):
        opcode, place = data[at], at + 1
        if opcode > REMOVE_TENTATIVE_XID:
            return at
        xid, item = 0, None
        if opcode >= SAVE_XID:
            if place + 4 > len(data):
                return at
            (xid,) = struct.unpack_from("<i", data, place)
            place += 4
        if opcode in (ADD, ADDX, ADD_XID, CONTINUE):
            if place + 4 > len(data):
                return at
            (size,) = struct.unpack_from("<i", data, place)
            place += 4
            if opcode == CONTINUE and 0 <= size <= len(data) and is_dump(data, place, size):
                return None
            times = 4 if opcode == ADD else 16
            if size < times or place + size > len(data):
                return at
            body = data[place : place + size]
            if opcode == ADD:
                item = (body[4:], None, struct.unpack_from("<i", body)[0] * 1000)
            else:
                item = (body[16:], *struct.unpack_from("<qq", body))
            place += size
        state.apply(opcode, xid, item)
        at = place
    return None


def operation(dice: random.Random) -> bytes:
    opcode = dice.choice([*range(10), ADDX, ADDX, ADDX, CONTINUE, REMOVE_TENTATIVE_XID])
    data = dice.randbytes(dice.choice([0, 1, 5, 30]))
    times = struct.pack("<qq", dice.choice([0, 1475195912693, -5, 2**62]), dice.choice([0, 5, -1, 2**63 - 1]))
    xid = struct.pack("<i", dice.choice(XIDS))
    match opcode:
        case 1 | 3:
            return bytes([opcode])
        case 0:
            return b"\0" + struct.pack("<ii", 4 + len(data), dice.choice([0, 5, -3, 2**31 - 1])) + data
        case 2:
            return b"\2" + struct.pack("<i", 16 + len(data)) + times + data
        case 7 | 8:
            return bytes([opcode]) + xid + struct.pack("<i", 16 + len(data)) + times + data
    return bytes([opcode]) + xid


def file(dice: random.Random) -> bytes:
    data = b"".join(operation(dice) for _ in range(dice.randrange(14)))
    if dice.random() < 0.2:
        count = dice.randrange(3)
        data += b"\x08" + struct.pack("<ii", dice.choice(XIDS), count)
        data += b"".join(struct.pack("<biiqq", 7, dice.choice(XIDS), 17, 1, 0) + b"z\3" for _ in range(count))
    at = dice.randrange(len(data) + 1)
    return dice.choice([
        data, data, data, data[:at], data[:at] + dice.randbytes(3) + data[at:], data[:at] + data[at + 3 :],
        data[:at] + bytes(len(data) - at),
    ])  # fmt: skip


def test_a_replay_gives_what_the_page_says(tmp_path: Path) -> None:
    dice = random.Random(0)
    for number in range(300):
        path = tmp_path / str(number)
        path.mkdir()
        rotated = sorted(dice.sample([5, 7, 100, 1475195912693, 1475195912694], dice.randrange(4)))
        packed = dice.choice([0, *rotated]) if dice.random() < 0.3 else 0
        names = [f"cars.{time}" + ".pack" * (time == packed) for time in rotated] + ["cars"]
        for name in names:
            (path / name).write_bytes(file(dice))
        if packed and not (path / f"cars.{packed}.pack").read_bytes():
            packed = 0  # an empty one does not count
        state, damage = State(), []
        for name in names:
            time = int(name.split(".")[1]) if "." in name else 2**63
            if time < packed or (name.endswith(".pack") and time != packed):
                continue
            at = read((path / name).read_bytes(), state)
            if at is not None:
                damage.append((name, at))
        found = kestrel.replay(path, "cars")
        assert [tuple(item) for item in found.items] == [item for item, _ in state.items]
        assert {xid: tuple(item) for xid, item in found.open_transactions.items()} == state.open
        assert found.last_xid == state.last_xid
        assert [(Path(one.path).name, one.position) for one in found.damage] == damage
