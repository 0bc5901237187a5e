"""CRC32C, as published."""

from __future__ import annotations

import crc32c as library
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sej.system.checksum import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, B.4, and the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


@given(data=st.binary(max_size=1000), cut=st.integers(0, 1000))
def test_continues_at_the_end_of_the_last_call(data: bytes, cut: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data) == library.crc32c(data)


def test_takes_any_buffer_and_nothing_else() -> None:
    assert crc32c(bytearray(b"123456789")) == crc32c(memoryview(b"123456789")) == 0xE3069283
    with pytest.raises(TypeError):
        crc32c("123456789")  # type: ignore[arg-type]
