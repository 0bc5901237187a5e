"""CRC32C: our own against the library's, and both against the published values."""

from __future__ import annotations

import crc32c as library
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sej.system.checksum import crc32c

ROUND = 256 + 3 * 40  # bytes that one round of the wide path takes
STREAMS = 3 * 40  # and one of the path with the CRC instruction alone


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


@settings(max_examples=300)
@given(
    seed=st.binary(min_size=1, max_size=64),
    size=st.integers(0, 12 * ROUND) | st.integers(0, 300_000),
    start=st.integers(0, 130),
    before=st.integers(0, 2**32 - 1),
)
@example(seed=b"x", size=4 * STREAMS, start=0, before=0)
@example(seed=b"x", size=4 * STREAMS - 1, start=3, before=2**32 - 1)
@example(seed=b"x", size=4 * ROUND, start=0, before=0)
@example(seed=b"x", size=4 * ROUND - 1, start=0, before=2**32 - 1)
def test_is_the_library_s(seed: bytes, size: int, start: int, before: int) -> None:
    data = memoryview((seed * (size // len(seed) + 3 * 64))[: start + size])[start:]
    assert crc32c(data, before) == library.crc32c(data, before)


@pytest.mark.parametrize(
    "size", [n for each in (ROUND, STREAMS) for n in (16_384 * each - 1, 16_384 * each, 20_000 * each + 77)]
)
def test_is_the_library_s_beyond_the_rounds_of_one_go(size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    assert crc32c(memoryview(data)[:size]) == library.crc32c(memoryview(data)[:size])


@given(data=st.binary(max_size=10 * ROUND), cut=st.integers(0, 10 * ROUND))
def test_continues_at_the_end_of_the_last_call(data: bytes, cut: int) -> None:
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


def test_takes_any_buffer_and_nothing_else() -> None:
    assert crc32c(bytearray(b"123456789")) == crc32c(memoryview(b"123456789")) == 0xE3069283
    with pytest.raises(TypeError):
        crc32c("123456789")  # type: ignore[arg-type]
