"""Decoding blocks of records, of both formats: the compiled table and the reference agree, at every limit."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel.hot import Table, reference
from kestrel.segmented.codec import PUTS, Item, encode_put
from kestrel.v2.codec import PLAIN

INT64 = st.integers(-(2**63), 2**63 - 1)
ITEMS = st.builds(Item, INT64, INT64, st.none() | INT64, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40))


@pytest.fixture(scope="module")
def references() -> dict[Any, Any]:
    """The tables of the two formats, made by the reference."""
    made: dict[Any, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kestrel.hot.Table", reference.Table)
        for name, table in (("kestrel.v2.codec", PLAIN), ("kestrel.segmented.codec", PUTS)):
            made[table] = reference_of(name)
    return made


def reference_of(module: str) -> Any:
    """Run a module again, with the reference's table."""
    import importlib.util

    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy.PLAIN if module.endswith("v2.codec") else copy.PUTS


def agree(references: dict[Any, Any], data: bytes) -> None:
    for table, other in references.items():
        found, used = table.decode(data, 7)
        assert other.decode(data, 7) == (found, used)
        assert used <= len(data)


@given(st.lists(ITEMS, max_size=6), st.binary(max_size=40), st.integers(0, 300))
def test_items_are_read_as_they_were_written(
    references: dict[Any, Any], items: list[Item], rest: bytes, cut: int
) -> None:
    data = b"".join(map(encode_put, items))
    assert PUTS.decode(data) == (items, len(data))
    assert all(type(item) is Item for item in PUTS.decode(data)[0])
    for block in (data, data[:-cut] if cut else data, data + rest, data[:cut] + rest + data[cut:]):
        agree(references, block)


def test_the_tables_agree_at_the_limits(references: dict[Any, Any]) -> None:
    assert Table is type(PUTS)
    agree(references, b"")
    for byte in (*range(12), 0x86, 0x87, 0x88, 0x91, 0xFF):
        for size in (-1, 0, 1, 15, 16, 17, 16 << 20, (16 << 20) + 1, 2**31 - 1, -(2**31)):
            for head in (
                struct.pack("<Biiqqq", byte, size, 0, 1, 2, 3),
                struct.pack("<Biiqqq", byte, 5, size, 1, 2, 3),
            ):
                for length in (0, 1, 4, 5, 9, 20, 21, 24, 25, 26, 32, 33):
                    agree(references, head[:length])
                agree(references, head + bytes(2))
            if byte == 0x86:
                agree(references, head + bytes(16 << 20))
