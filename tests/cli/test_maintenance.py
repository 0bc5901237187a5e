"""Commands that change a journal: sej repair, clean, index; and sej stat and doctor, which advise them."""

import json
import os
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import sej as library
from sej.cli.shared.readers import Reader, readers_of
from tests.cli.command import sej, start
from tests.cli.inside import inside
from tests.sej.support import overwrite, write


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    write(path, [b"value %d" % number for number in range(300)], segment_bytes=2000)
    return path


def files(journal: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted((journal / "jnl").iterdir())}


def damage(journal: Path) -> None:
    segment = sorted((journal / "jnl").iterdir())[1]
    overwrite(segment, 100, b"\xff" * 40)


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


def test_stat_for_people_and_programs(journal: Path, tmp_path: Path) -> None:
    with library.Offset(journal, "billing") as kept, library.Writer(journal):
        kept.commit(100)
        row = json.loads(sej("stat", "--json", journal).stdout)
        assert (row["messages"], row["readers"][0]["behind"], row["readers"][0]["running"]) == (300, 200, True)
        assert row["writer"].startswith("pid=")
        page = sej("stat", journal).stdout
        columns = {line[:12].strip(): line[:2] + line[2:3].strip() for line in page.decode().splitlines()[1:]}
        assert columns == {name: f"  {name[0]}" for name in ("messages", "segments", "last", "writer", "reader")}
        assert b"billing at 100, 200 behind for " in page
        assert b" s, pid=" in page
        text = sej("stat", "--prometheus", journal, journal).stdout.decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert families["sej_last_message_timestamp_seconds"].samples[0].value == pytest.approx(time.time(), abs=600)
        lines = text.splitlines()
        assert f'sej_reader_behind{{journal="{journal}",reader="billing"}} 200' in lines
        assert f'sej_writer_running{{journal="{journal}"}} 1' in lines
        assert lines.count("# TYPE sej_bytes gauge") == 1
        assert sej("stat", "--health", journal).returncode == 0
        stuck = sej("stat", "--health", "--stuck-after", "0", journal)
        assert stuck.returncode == 1
        assert b"stuck at 100" in stuck.stdout
    assert sej("stat", "--health", "--stuck-after", "0", journal).returncode == 0  # no reader runs
    assert sej("stat", tmp_path / "nothing").returncode == 4


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
