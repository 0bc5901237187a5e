"""CRC32C, as published."""

from __future__ import annotations

import pytest

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
