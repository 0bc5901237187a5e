"""Where things are: sej file, timestamp, old; --start and --end as times; --type; --format."""

import json
import time
from pathlib import Path

import pytest

import sej as library
from tests.cli.command import sej

STAMP = 1_500_000_000_000_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Thirty messages, one a second, in segments of 5 to 6, types 0 to 2."""
    path = tmp_path / "journal"
    with library.Writer(path, segment_bytes=200) as writer:
        for number in range(30):
            writer.append(b"value %d" % number, b"\xff", number % 3, STAMP + number * 10**9)
    return path


def offsets(out: bytes) -> list[int]:
    return [int(line.split(b"\t")[0]) for line in out.splitlines()]


def test_type_zero_is_a_type(journal: Path) -> None:
    assert offsets(sej("scan", "--type", "0", "--end", "9", journal).stdout) == [0, 3, 6]
    assert offsets(sej("tail", "--type", "0", "--type", "2", "-n", "3", journal).stdout) == [26, 27, 29]
    assert sej("count", "--type", "1", journal).stdout == b"10\n"
    assert offsets(sej("dump", "--type", "0", sorted((journal / "jnl").iterdir())[0]).stdout)[:2] == [0, 3]


def test_hex_shows_bytes(journal: Path) -> None:
    line = sej("tail", "--format", "hex", "-n", "1", journal).stdout
    assert line.endswith(b"\tff\t%b\n" % b"value 29".hex().encode())
    assert json.loads(sej("tail", "--format", "json", "-n1", journal).stdout)["offset"] == 29
    assert sej("tail", "--format", "xml", journal).returncode == 2


def test_file_finds_the_segment(journal: Path) -> None:
    segments = sorted((journal / "jnl").iterdir())
    lines = sej("file", journal).stdout.decode().splitlines()
    assert [line.split("\t")[0] for line in lines] == [str(segment) for segment in segments]
    path = Path(sej("file", journal, "17").stdout.decode().strip())
    assert 17 in offsets(sej("dump", path).stdout)
    assert sej("file", journal, "2017-07-14 02:40:17").stdout.decode().strip() == str(path)
    assert json.loads(sej("file", "--json", journal, "17").stdout)["path"] == str(path)
    assert sej("file", journal, "30").returncode == 4
    assert json.loads(sej("file", "--json", journal).stdout.splitlines()[0])["first_offset"] == 0


def test_timestamp_is_of_the_message_itself(journal: Path) -> None:
    assert sej("timestamp", journal, "5").stdout == b"5\t2017-07-14T02:40:05.000000000Z\n"
    assert sej("timestamp", journal, "2017-07-14 02:40:05").stdout.startswith(b"5\t")
    row = json.loads(sej("timestamp", "--json", journal, "0").stdout)
    assert row == {"offset": 0, "timestamp_ns": STAMP, "time": "2017-07-14T02:40:00.000000000Z"}
    done = sej("timestamp", journal, "30")
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"0 to 29" in done.stderr


def test_timestamp_accepts_the_reader_of_the_original(journal: Path) -> None:
    with library.Offset(journal, "billing") as kept:
        assert sej("timestamp", "--offset", "billing", journal).stdout.startswith(b"0\t")
        kept.commit(5)
    assert sej("timestamp", "--offset", "billing", journal).stdout == b"5\t2017-07-14T02:40:05.000000000Z\n"
    assert sej("timestamp", "--offset", "typo", journal).returncode == 4
    assert sej("timestamp", "--offset", "billing", journal, "5").returncode == 2
    assert sej("timestamp", journal).returncode == 2


DAY_NS = 86_400 * 10**9


def test_old_lists_segments_that_no_reader_needs(journal: Path) -> None:
    segments = sorted((journal / "jnl").iterdir())
    assert sej("old", "--days", "0", journal).stdout.decode().splitlines() == [str(path) for path in segments[:-1]]
    with library.Offset(journal, "slow") as kept:
        kept.commit(int(segments[2].stem, 16))
    assert sej("old", "--days", "0", journal).stdout.decode().splitlines() == [str(path) for path in segments[:2]]
    done = sej("old", "--days", "0", journal)
    assert f"{segments[2]} is old, but reader 'slow' still needs it: it is at offset ".encode() in done.stderr
    assert sej("old", "--before", "2001-01-01", journal).stderr == b"", "no segment is as old"
    assert sej("old", "--before", "17", journal).returncode == 2
    assert sej("old", "--before", "1h ago", "--days", "1", journal).returncode == 2
    assert sorted((journal / "jnl").iterdir()) == segments


def test_old_goes_by_the_time_of_the_messages(tmp_path: Path) -> None:
    now = time.time_ns()
    ages = [30, 20, 8, 10, 3, 9, 1]  # days; 3 comes before 9: clocks that go back
    with library.Writer(tmp_path / "j", segment_bytes=1) as writer:
        for age in ages:
            writer.append(b"v", timestamp=now - age * DAY_NS)

    def listed(*options: str) -> list[int]:
        return [int(Path(line).stem, 16) for line in sej("old", *options, tmp_path / "j").stdout.decode().splitlines()]

    assert listed() == [0, 1, 2, 3]
    assert listed("--days", "15") == [0, 1]
    assert listed("--before", "15d ago") == [0, 1]
    assert listed("--days", "2.5") == [0, 1, 2, 3, 4, 5]
    assert listed("--days", "0") == [0, 1, 2, 3, 4, 5, 6]


def test_file_prints_the_ends_of_a_segment_as_the_original_does(journal: Path, tmp_path: Path) -> None:
    first, second = sorted((journal / "jnl").iterdir())[:2]
    lines = [line.split("\t") for line in sej("file", first).stdout.decode().splitlines()]
    assert [line[:2] for line in lines] == [["first", "0"], ["last", str(int(second.stem, 16) - 1)]]
    assert lines[0][2] == "2017-07-14T02:40:00.000000000Z"
    rows = [json.loads(line) for line in sej("file", "--json", first).stdout.splitlines()]
    assert [[row["message"], str(row["offset"]), row["time"]] for row in rows] == lines
    (tmp_path / "empty.jnl").touch()
    assert sej("file", tmp_path / "empty.jnl").returncode == 4
    assert sej("file", tmp_path / "missing.jnl").returncode == 4
