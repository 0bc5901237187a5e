"""Decoding blocks of libkestrel's records: the items, and their sizes and totals alone."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from kestrel.segmented import codec
from kestrel.segmented.codec import Item

INT64 = st.integers(-(2**63), 2**63 - 1)
ITEMS = st.builds(Item, INT64, INT64, st.none() | INT64, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40))


def agrees(data: bytes) -> None:
    found, used = codec.decode_items(data)
    assert all(type(item) is Item for item in found)
    sizes = [(item.id, len(item.data)) for item in found]
    assert codec.decode_sizes(data) == (sizes, used)
    assert codec.decode_totals(data) == ([codec.totals_of(sizes)] if sizes else [], used)


@given(st.lists(ITEMS, max_size=6), st.binary(max_size=40), st.integers(0, 300))
def test_items_sizes_and_totals_agree(items: list[Item], rest: bytes, cut: int) -> None:
    data = b"".join(map(codec.encode_put, items))
    found, used = codec.decode_items(data)
    assert (found, used) == (items, len(data))
    for block in (data, data[:-cut] if cut else data, data + rest, data[:cut] + rest + data[cut:]):
        agrees(block)


def test_they_agree_on_sizes_at_the_limits() -> None:
    agrees(b"")
    for byte in (0x00, 0x02, 0x86, 0x87, 0x88, 0x91, 0xFF):
        for size in (-1, 0, 1, 16 << 20, (16 << 20) + 1, 2**31 - 1, -(2**31)):
            head = struct.pack("<Biiqqq", byte, size, 0, 1, 2, 3)
            for length in (0, 1, 24, 25, 26, 32, 33):
                agrees(head[:length])
            agrees(head + bytes(2))
            agrees(head + bytes(16 << 20))
