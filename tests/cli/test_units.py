"""Durations, sizes and times, as people write them."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sej.checks import parse_duration
from sej.cli.shared.text import Moment, human_duration, human_size, parse_moment, parse_place, parse_size


def place_now(text: str) -> int | Moment:
    return parse_place(text, NOW)


NOW = 1_500_000_000_000_000_000  # 2017-07-14T02:40:00Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0", 0), ("1.5h", 5400), ("1h30m", 5400), ("2 days", 172_800), ("2w", 1_209_600), ("10 min", 600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("1000", 1000), ("64K", 65_536), ("1.5 GiB", 3 << 29), ("2t", 2 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("now", datetime(2017, 7, 14, 2, 40, tzinfo=UTC)),
        ("today", datetime(2017, 7, 14, tzinfo=UTC)),
        ("yesterday", datetime(2017, 7, 13, tzinfo=UTC)),
        ("02:39", datetime(2017, 7, 14, 2, 39, tzinfo=UTC)),
        ("10m ago", datetime(2017, 7, 14, 2, 30, tzinfo=UTC)),
        ("-1h10m", datetime(2017, 7, 14, 1, 30, tzinfo=UTC)),
        ("@1500000000", datetime(2017, 7, 14, 2, 40, tzinfo=UTC)),
        ("1960-01-01", datetime(1960, 1, 1, tzinfo=UTC)),
    ],
)
def test_times(text: str, when: datetime) -> None:
    assert parse_moment(text, NOW).timestamp == int(when.timestamp()) * 10**9


def test_what_the_command_prints_it_reads_to_the_nanosecond() -> None:
    assert parse_place("2017-07-14T02:40:00.000000001Z", 0) == Moment(NOW + 1)
    assert parse_place("@1500000000.000000001", 0) == Moment(NOW + 1)
    assert parse_place("17", NOW) == 17
    assert parse_place("-1s", NOW) == parse_place("1s ago", NOW) == Moment(NOW - 10**9)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        *((place_now, text, "is no") for text in ("", "soon", "2026-13-01", "10x ago", "-", "1.5", "²")),
        *((place_now, text, "offsets begin at 0.*s ago'") for text in ("-1", " -1 ", "-0", "-2.5", "- 1")),
        *((parse_duration, text, "is not a duration") for text in ("", "h", "-1", "1h x", "nan", "inf")),
        *((parse_size, text, "is not a size") for text in ("", "K", "-1", "1X")),
    ],
)
def test_what_is_none(parse: Callable[[str], object], text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        parse(text)


def test_sizes_and_durations_for_people() -> None:
    assert [human_size(n) for n in (0, 1023, 1024, 5 << 20, 3 << 40)] == ["0 B", "1023 B", "1 KiB", "5 MiB", "3 TiB"]
    assert [human_duration(s) for s in (0, 119, 120, 7200, 86_400)] == ["0 s", "119 s", "2 min", "2 h", "24 h"]
