"""Memory of data that stays: used again when it is free, and not before."""

from collections import defaultdict

import numpy as np
import pytest

from pipeline.reading import task as memory
from pipeline.reading.task import allocate

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_kept", defaultdict(list))


def address(piece: memoryview) -> int:
    return int(np.frombuffer(piece, np.uint8).ctypes.data)


def test_a_small_piece_is_the_allocator_s() -> None:
    for _ in range(2):
        piece, fresh = allocate(1000)
        assert len(piece) == 1000 and not piece.readonly and not fresh
        del piece
    assert not memory._kept


@pytest.mark.parametrize("size", [MIB + 2, 5 * MIB + 12_345])
def test_a_large_piece_is_used_again_when_its_last_part_is_free(size: int) -> None:
    piece, fresh = allocate(size)
    assert len(piece) == size and not piece.readonly and fresh
    assert address(piece) % 64 == 0
    where, part = address(piece), piece[1000:1010]
    part[:] = b"0123456789"
    del piece
    other, fresh = allocate(size)
    assert fresh and address(other) != where
    other[:] = b"x" * size
    assert bytes(part) == b"0123456789"
    del part
    again, fresh = allocate(size - 1)
    assert (len(again), fresh, address(again)) == (size - 1, False, where)
    again[:] = b"y" * (size - 1)
    assert bytes(other) == b"x" * size


def test_no_more_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_KEPT_BYTES", 5 * MIB)
    pieces = [allocate(size) for size in (2 * MIB, MIB, 2 * MIB, MIB)]
    del pieces
    assert sorted(len(piece) for pieces in memory._kept.values() for piece in pieces) in (
        [MIB, 2 * MIB, 2 * MIB],
        [MIB, MIB, 2 * MIB],
    )
    _, fresh = allocate(MIB)
    assert not fresh


def test_nothing_is_kept_if_the_system_cannot_take_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MADV_FREE", None)
    for _ in range(2):
        piece, fresh = allocate(MIB)
        assert len(piece) == MIB and fresh
        del piece
    assert not any(memory._kept.values())
