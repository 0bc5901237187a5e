"""sej count, scan, tail and dump: their forms, and that they only look."""

import base64
import json
from pathlib import Path

import pytest

import sej as library
from tests.cli.command import sej

STAMP = 1_500_000_000_000_000_000


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    with library.Writer(path, segment_bytes=200) as writer:
        writer.append(b"plain", b"key", 7, STAMP)
        writer.append("größer\n\ttab \\".encode(), b"", 0, library.NO_TIMESTAMP)
        writer.append(b"\xff\x00binary", b"\xfe", 255, STAMP + 1)
        for number in range(20):
            writer.append(b"value %d" % number, timestamp=STAMP)
    return path


def test_count_prints_the_number_alone(journal: Path) -> None:
    done = sej("count", journal)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"23\n", b"")
    assert json.loads(sej("count", "--json", journal).stdout) == {"messages": 23}


def test_a_time_is_compared_with_every_message(tmp_path: Path) -> None:
    """The clocks of producers differ: the messages of an hour need not be next to each other."""
    hours = [1, 5, 2, 6, 3, 7, 2]
    with library.Writer(tmp_path / "j", segment_bytes=100) as writer:
        for hour in hours:
            writer.append(b"%d" % hour, timestamp=hour * 3600 * 10**9)
        writer.append(b"none", timestamp=library.NO_TIMESTAMP)
    segment = next(iter(sorted((tmp_path / "j" / "jnl").iterdir())))

    def raw(*options: str) -> bytes:
        return sej("scan", "--raw", *options, tmp_path / "j").stdout

    between = ("--start", "1970-01-01 02:00", "--end", "1970-01-01 04:00")
    assert raw(*between) == b"232"
    assert raw("--end", "1970-01-01 04:00") == b"1232none"
    assert raw("--start", "1970-01-01 05:30") == b"67"
    assert raw("--start", "1970-01-01 02:00", "--end", "4") == b"526"
    assert sej("count", *between, tmp_path / "j").stdout == b"3\n"
    assert sej("dump", "--raw", "--end", "1970-01-01 04:00", segment).stdout == b"12"


def test_raw_prints_values_byte_for_byte(journal: Path) -> None:
    assert sej("scan", "--raw", "--count", "3", journal).stdout == b"plaingr\xc3\xb6\xc3\x9fer\n\ttab \\\xff\x00binary"
    assert sej("scan", "--format", "raw", "--start", "2", "--end", "3", journal).stdout == b"\xff\x00binary"
    assert sej("tail", "--raw", "--count", "1", journal).stdout == b"value 19"
    done = sej("scan", "--raw", "--json", journal)
    assert (done.returncode, b"--raw prints values only" in done.stderr) == (2, True)


def test_scan_accepts_the_count_of_the_original(journal: Path) -> None:
    assert sej("scan", "--count", journal).stdout == sej("scan", journal, "--count").stdout == b"23\n"
    assert sej("scan", "--count", "--type", "0", journal).stdout == b"21\n"
    day = ["--start", "2017-07-14T02:40:00", "--end", "2017-07-14T02:41:00"]
    assert sej("scan", *day, "--count", journal).stdout == sej("count", *day, journal).stdout == b"22\n"
    assert sej("scan", "--count", "two", journal).returncode == 2


def test_scan_prints_one_message_a_line(journal: Path) -> None:
    lines = sej("scan", journal).stdout.decode().splitlines()
    assert len(lines) == 23
    assert lines[0] == "0\t2017-07-14T02:40:00.000000000Z\t7\tkey\tplain"
    assert lines[1] == "1\t-\t0\t\tgrößer\\n\\ttab \\\\"
    assert lines[2] == "2\t2017-07-14T02:40:00.000000001Z\t255\t\\xfe\t\\xff\\x00binary"


def test_scan_json_says_everything(journal: Path) -> None:
    rows = [json.loads(line) for line in sej("scan", "--json", journal).stdout.splitlines()]
    assert rows[0] == {
        "offset": 0,
        "timestamp_ns": STAMP,
        "time": "2017-07-14T02:40:00.000000000Z",
        "type": 7,
        "key": "key",
        "value": "plain",
    }
    assert rows[1] == {
        "offset": 1,
        "timestamp_ns": None,
        "time": None,
        "type": 0,
        "key": "",
        "value": "größer\n\ttab \\",
    }
    assert base64.b64decode(rows[2]["value_b64"]) == b"\xff\x00binary"
    assert base64.b64decode(rows[2]["key_b64"]) == b"\xfe"
    assert "value" not in rows[2]
    assert [row["offset"] for row in rows] == list(range(23))


def test_scan_between_offsets(journal: Path) -> None:
    lines = sej("scan", "--start", "5", "--end", "8", journal).stdout.splitlines()
    assert [int(line.split(b"\t")[0]) for line in lines] == [5, 6, 7]
    assert sej("scan", "--end", "0", journal).stdout == b""
    beyond = sej("scan", "--start", "99", journal)
    assert beyond.stderr.decode() == f"sej: {journal}: nothing from offset 99 on: the journal ends at 23\n"


def test_tail_prints_the_last(journal: Path) -> None:
    assert [int(line.split(b"\t")[0]) for line in sej("tail", journal).stdout.splitlines()] == list(range(13, 23))
    rows = [json.loads(line) for line in sej("tail", "--count", "3", "--json", journal).stdout.splitlines()]
    assert [row["value"] for row in rows] == ["value 17", "value 18", "value 19"]
    assert sej("tail", "--count", "0", journal).stdout == b""


def test_dump_reads_one_segment(journal: Path) -> None:
    segment = sorted((journal / "jnl").iterdir())[1]
    rows = [json.loads(line) for line in sej("dump", "--json", segment).stdout.splitlines()]
    assert rows[0]["offset"] == int(segment.stem, 16)
    assert len(rows) >= 2
    (journal / "jnl" / "elsewhere").write_bytes(segment.read_bytes())
    assert len(sej("dump", journal / "jnl" / "elsewhere").stdout.splitlines()) == len(rows)
    assert sej("dump", journal).returncode == 4
    assert sej("dump", journal / "missing.jnl").returncode == 4


@pytest.mark.parametrize("words", [[], ["frob"], ["count"], ["tail", "--count", "x", "."], ["scan", "--frob", "."]])
def test_wrong_usage(words: list[str]) -> None:
    done = sej(*words)
    assert done.returncode == 2
    assert b"Usage: sej" in done.stderr + done.stdout


def test_a_mistyped_command_is_guessed() -> None:
    done = sej("coutn", ".")
    assert (done.returncode, b"Did you mean 'count'?" in done.stderr) == (2, True)
    assert b"Did you mean" not in sej("xyzzy").stderr


def test_version_names_the_codec() -> None:
    from sej import codec

    done = sej("--version")
    assert done.returncode == 0
    assert f"codec {codec.IMPLEMENTATION}".encode() in done.stdout
    assert b"codec pure (python)" in sej("--version", env={"SEJ_CODEC": "python"}).stdout


def test_hexadecimal_excludes_json(tmp_path: Path) -> None:
    with library.Writer(tmp_path / "j") as writer:
        writer.append(b"x")
    done = sej("scan", "--format", "hex", "--json", tmp_path / "j")
    assert (done.returncode, b"leave out --json or --format" in done.stderr) == (2, True)


def test_dump_of_a_text_file(tmp_path: Path) -> None:
    for text in (b"hello\nworld\n", b"short", bytes([255] * 9)):
        (tmp_path / "notes.txt").write_bytes(text)
        done = sej("dump", tmp_path / "notes.txt")
        assert (done.returncode, b"this is not a SEJ segment" in done.stderr) == (4, True)
