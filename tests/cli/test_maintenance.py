"""Commands that check, change or measure a journal: sej verify, repair, clean, index, bench; and sej stat."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import sej as library
from sej.cli.bench import MEASUREMENTS
from sej.cli.shared.readers import Reader, readers_of
from tests.cli.command import ROOT, sej, start
from tests.cli.inside import inside
from tests.sej.support import overwrite, write


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    write(path, [b"value %d" % number for number in range(300)], segment_bytes=2000)
    return path


def files(journal: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted((journal / "jnl").iterdir())}


def test_clean_while_another_process_appends(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def readers_later(looked_at: library.Journal) -> list[Reader]:
        write(journal, [b"value %d" % number for number in range(300)], segment_bytes=2000)
        return readers_of(looked_at)

    monkeypatch.setattr("sej.cli.maintenance.readers_of", readers_later)
    done = inside(monkeypatch, "clean", "--max-bytes", "5K", journal)
    assert (done.code, done.err) == (0, "") and done.out


def test_readers_that_are_stuck_at_damage_and_after_it(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = sorted((journal / "jnl").iterdir())[0]
    with library.Offset(journal, "a") as a, library.Offset(journal, "b") as b:
        a.commit(3)
        b.commit(200)
        for name in ("a", "b"):
            os.utime(journal / "ofs" / f"{name}.ofs", (1, 1))
        overwrite(segment, 3 * (26 + len("value 0")) + 17, b"\xff")  # the size of a key
        health = inside(monkeypatch, "stat", "--health", "--stuck-after", "0s", journal)
        assert health.code == 1 and health.out.count(b"it is stuck at") == 2, health
        doctor = inside(monkeypatch, "doctor", "--json", journal)
        found = {row["what"]: row for row in map(json.loads, doctor.out.splitlines())}
        assert "it is stuck at 3" in found["reader a"]["found"] and "reader b" in found


def test_stat_while_a_reader_and_a_writer_run(journal: Path) -> None:
    with library.Offset(journal, "billing") as kept, library.Writer(journal):
        kept.commit(100)
        row = json.loads(sej("stat", "--json", journal).stdout)
        assert (row["readers"][0]["running"], row["writer_running"], row["writer"][:4]) == (True, True, "pid=")
        page = sej("stat", journal).stdout
        assert b"writer    pid=" in page
        assert re.search(rb"billing at 100, 200 behind for .* s, pid=", page)
        text = sej("stat", "--prometheus", journal, journal).stdout.decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert families["sej_last_message_timestamp_seconds"].samples[0].value == pytest.approx(time.time(), abs=600)
        lines = text.splitlines()
        assert f'sej_reader_behind{{journal="{journal}",reader="billing"}} 200' in lines
        assert f'sej_writer_running{{journal="{journal}"}} 1' in lines
        assert lines.count("# TYPE sej_bytes gauge") == 1


def test_long_work_says_how_far_it_is(journal: Path) -> None:
    sizes = [segment.size for segment in library.Journal(journal).segments]
    due = [(sum(sizes[:at]), sum(sizes)) for at in range(len(sizes))]
    verified: list[tuple[int, int]] = []
    library.Journal(journal).verify(progress=lambda done, total: verified.append((done, total)))
    repaired: list[tuple[int, int]] = []
    library.Journal(journal).repair(dry_run=True, progress=lambda done, total: repaired.append((done, total)))
    assert verified == repaired == due


def test_a_reader_beyond_its_limit_is_named_before_and_after(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with library.Offset(journal, "old") as kept:
        kept.commit(10)
    health = ("stat", "--health", journal)
    assert inside(monkeypatch, *health).code == 0
    size = sum(map(len, files(journal).values()))
    behind = size - (journal / "jnl" / f"{0:016x}.jnl").stat().st_size
    clean = ("clean", "--max-bytes", "0", "--reader-max-lag-bytes")
    soon = inside(monkeypatch, *clean, str(behind), journal)
    assert soon.out == b""
    assert "reader 'old': retention will soon remove messages that it has not read" in soon.err
    assert f"{behind} bytes behind, and reader_max_lag_bytes is {behind}" in soon.err
    told = inside(monkeypatch, *health)
    assert told.code == 1 and b"will soon remove" in told.out
    assert b"will soon remove" in inside(monkeypatch, "doctor", journal).out
    done = inside(monkeypatch, *clean, str(behind - 1), journal)
    assert len(done.out.splitlines()) >= 3
    assert "reader 'old': retention does not wait for it any more: " in done.err
    told = inside(monkeypatch, *health)
    assert told.code == 1 and b"were deleted before it read them" in told.out
    looked = inside(monkeypatch, "doctor", journal)
    assert b"reader_max_lag_bytes" in looked.out and f"sej reset {journal} old first".encode() in looked.out


def test_a_line_is_there_before_the_pipe_ends(tmp_path: Path) -> None:
    with start("append", tmp_path / "j", stdin=True) as running:
        assert running.stdin is not None
        for number in range(3):
            running.stdin.write(b"line %d\n" % number)
            running.stdin.flush()
            while not (tmp_path / "j" / "jnl").exists():
                assert running.poll() is None
            with library.Scanner(tmp_path / "j", number, timeout=30) as scanner:
                assert next(iter(scanner)).value == b"line %d" % number
        running.stdin.close()
        assert running.wait(20) == 0


GOLDEN = ROOT / "tests" / "golden" / "sej"
SOUND = [
    *("basic", "all-types", "multi-segment", "multi-segment-empty-tail", "multi-segment-exact", "reopened"),
    *("first-deleted", "empty", "offsets", "only-empty-high", "torn-cut-all"),
]
CASES = sorted(path.name for path in GOLDEN.iterdir() if (path / "dir" / "jnl").is_dir())


@pytest.mark.parametrize(
    ("kind", "at", "named", "harm"),
    [
        ("checksum", 0, 0, lambda segment: overwrite(segment, 60, b"?")),
        ("corruption", 0, 0, lambda segment: overwrite(segment, 0, b"\xff" * 8)),
        ("gap", 1, 0, Path.unlink),
        ("torn tail", -1, -1, lambda segment: os.truncate(segment, segment.stat().st_size - 3)),
    ],
)
def test_damage_is_named_by_file_and_position(
    journal: Path, kind: str, at: int, named: int, harm: Callable[[Path], object]
) -> None:
    segments = list(files(journal))
    harm(segments[at])
    before = files(journal)
    done = sej("verify", journal)
    assert done.returncode == 1
    line = done.stdout.decode().splitlines()[0]
    assert str(segments[named]) in line and "position" in line and kind in line
    row = json.loads(sej("verify", "--json", journal).stdout.splitlines()[0])
    assert (row["kind"], row["path"]) == (kind, str(segments[named]))
    assert isinstance(row["position"], int)
    assert before == files(journal)


def test_a_tail_in_flight_is_not_damage(journal: Path) -> None:
    with library.Writer(journal):
        with max(files(journal)).open("ab") as file:
            file.write(b"\0" * 5)
        assert sej("verify", journal).returncode == 0
        assert b"ok       torn tail: " in sej("doctor", journal).stdout
    assert sej("verify", journal).returncode == 1


@pytest.mark.parametrize("case", CASES)
def test_no_case_ends_in_a_traceback(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(GOLDEN / case / "dir", tmp_path / "j")
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    verified = inside(monkeypatch, "verify", tmp_path / "j")
    assert (verified.code, verified.err) == (0 if case in SOUND else 1, ""), verified.out
    counted = inside(monkeypatch, "count", tmp_path / "j")
    if counted.code == 0:
        assert int(counted.out.splitlines()[-1]) == len(expected["messages"])
    else:
        assert counted.code == 1
        assert "position" in counted.err
    for command in ("scan", "tail", "doctor", "stat"):
        done = inside(monkeypatch, command, "--json", tmp_path / "j")
        assert done.code in (0, 1)
        assert "Warning" not in done.err


def test_every_measurement_works(tmp_path: Path) -> None:
    done = sej("bench", "--json", "--seconds", "0", "--value-bytes", "1K", tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    head, *rows = map(json.loads, done.stdout.splitlines())
    assert (head["path"], head["value_bytes"]) == (str(tmp_path), 1024)
    assert [(row["operation"], row["call"]) for row in rows] == [one[:2] for one in MEASUREMENTS]
    for row in rows:
        assert row["rate"] > 0
        assert len(row["rounds"]) == 3
        assert row["survives"] in ("clean close", "process death", "power loss") or row["operation"] == "read in order"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_its_files_go_however_it_ends(tmp_path: Path, number: int, code: int) -> None:
    with start("bench", "--seconds", "10m", "--only", "append", tmp_path) as running:
        # It measures: a signal in the middle of an import would leave its file to the garbage collection.
        while not any(segment.stat().st_size for segment in tmp_path.glob("sej-bench-*/**/*.jnl")):
            assert running.poll() is None
        running.send_signal(number)
        assert running.wait(20) == code
        assert running.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []
