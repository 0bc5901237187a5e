"""sej doctor: one page, every ill named with what to do, and exit codes that scripts can trust."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

import sej as library
from sej.cli.shared import findings
from tests.cli.command import ENV, sej
from tests.cli.inside import inside
from tests.cli.terminal import ended, terminal
from tests.sej.hooks import script
from tests.sej.support import commit, overwrite, write

NS = 10**9


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    write(path, [b"value %d" % number for number in range(300)], segment_bytes=2000)
    return path


def found(journal: Path, *words: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """The findings by what was looked at; the last of each."""
    done = sej("doctor", "--json", *words, journal)
    assert done.returncode == code, done.stdout
    return {row["what"]: row for row in map(json.loads, done.stdout.splitlines())}


def test_one_page(journal: Path) -> None:
    done = sej("doctor", journal)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) < 25
    assert {line.split()[0] for line in done.stdout.splitlines()} == {b"ok"}
    rows = found(journal)
    assert set(rows) == {"writer", "permissions", "disk", "messages", "damage", "clock"}
    assert {row["journal"] for row in rows.values()} == {str(journal)}
    assert "damage" not in found(journal, "--quick"), "not every message was read"
    end = library.Journal(journal).end_offset
    assert rows["messages"]["found"].startswith(f"offsets 0 to {end - 1}, next offset {end}, ")


def test_holders_of_the_locks(journal: Path) -> None:
    with library.Writer(journal), library.Offset(journal, "billing"), library.open_queue(journal, "mails"):
        rows = found(journal)
    pid = f"pid={os.getpid()} "
    assert pid in rows["writer"]["found"]
    assert f"ofs/billing.lck by {pid}" in rows["locks"]["found"]
    assert "ofs/mails.lck by " in rows["locks"]["found"]


@pytest.mark.parametrize("left", [0, 2, 63])
def test_messages_that_were_on_the_disk_and_are_gone(tmp_path: Path, left: int) -> None:
    write(tmp_path, [b"value"] * 90)
    os.truncate(tmp_path / "jnl" / "0000000000000000.jnl", left * 31)
    rows = found(tmp_path, code=1)
    assert f"messages {left} to 89 are gone" in rows["lost messages"]["found"]
    assert "damage" not in rows
    with library.Writer(tmp_path) as writer:
        assert "lost messages" not in found(tmp_path), "it is an old position of the file"
        assert (writer.offset, writer.recovery) == (left, None)
    assert "lost messages" not in found(tmp_path)


def test_a_torn_tail_of_zeros_where_messages_were_on_the_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As after a power failure on a disk that had promised them."""
    write(tmp_path, [b"value"] * 90)
    segment = tmp_path / "jnl" / "0000000000000000.jnl"
    size = segment.stat().st_size
    os.truncate(segment, 40 * 31)
    os.truncate(segment, size)
    for words in ((), ("--quick",)):
        assert "messages 40 to 89 are gone" in found(tmp_path, *words, code=1)["lost messages"]["found"]
    with caplog.at_level(logging.WARNING, "sej"), library.Writer(tmp_path) as writer:
        assert writer.offset == 40
    assert "messages 40 to 89 are gone" in caplog.text
    assert "lost messages" not in found(tmp_path)
    overwrite(segment, 31, bytes(31))
    next((tmp_path / "idx").glob("*.idx")).unlink()
    assert "lost messages" not in found(tmp_path, code=1), "this is damage"


@pytest.mark.parametrize("more", [0, 8])
def test_a_reader_whose_messages_were_lost_gets_its_command(tmp_path: Path, more: int) -> None:
    path = tmp_path / "a b"
    with library.Writer(path) as writer:
        writer.append_many([b"value"] * 5)
        writer.append_many([b"value"] * 85)
    commit(path, "r", 90)
    os.truncate(path / "jnl" / "0000000000000000.jnl", 85 * 31)
    write(path, [b"other"] * more)
    row = found(path, code=1)["reader r"]
    assert row["level"] == "problem"
    assert row["do"].endswith(": the first message that it has not read")
    command = shlex.split(row["do"].split("`")[1])[1:]
    assert command == ["reset", str(path), "r", "85"]
    moved = sej(*command, "--yes")
    assert moved.returncode == 0
    assert (b"again" in moved.stdout) is (more > 5)
    assert found(path)["reader r"]["level"] == ("note" if more else "ok")
    assert library.read_offset(path, "r") == 85
    (path / "ofs" / "original.ofs").write_bytes((1000).to_bytes(8, "big"))
    do = found(path, code=1)["reader original"]["do"]
    assert do.endswith(f" {85 + more}`: which messages it has read is unknown")


def test_a_full_disk_and_a_journal_of_one_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_FREE_BYTES", 1 << 62)
    for count, text in (1, "`sej clean` keeps the last one"), (300, "sej clean --max-bytes SIZE "):
        write(tmp_path, [b"value"] * count, segment_bytes=2000)
        rows = findings.findings_of(str(tmp_path), quick=True)
        assert next(text in row.found + row.do for row in rows if row.what == "disk")


def test_a_replaced_segment_has_lost_no_messages(tmp_path: Path) -> None:
    write(tmp_path, [b"value"] * 90)
    segment = tmp_path / "jnl" / "0000000000000000.jnl"
    data = segment.read_bytes()
    segment.rename(tmp_path / "old")
    segment.write_bytes(data[:31])
    assert "lost messages" not in found(tmp_path)


def test_messages_from_the_future(tmp_path: Path) -> None:
    now = time.time_ns()
    with library.Writer(tmp_path / "j") as writer:
        for ahead_s in (-1, 3600, 0):
            writer.append(b"a", timestamp=now + ahead_s * NS)
    row = found(tmp_path / "j")["clock"]
    assert row["level"] == "note"
    assert "in the future: this machine's clock" in row["found"]


def test_a_clock_that_was_set_back(journal: Path) -> None:
    last = sorted((journal / "jnl").iterdir())[-1]
    ahead = time.time() + 86_400
    os.utime(last, (ahead, ahead))
    assert "ahead of this machine's clock" in sej("doctor", journal).stdout.decode()
    assert sej("doctor", journal).returncode == 1


def test_a_reader_that_is_stuck(tmp_path: Path) -> None:
    """It runs in another process, and its message and its last commit are an hour old."""
    write(tmp_path / "j", [b"x"] * 3, timestamp=time.time_ns() - 3600 * NS)
    code = (
        "import sej, sys, signal\nwith sej.Offset(sys.argv[1], 'mailer') as kept:\n"
        " kept.commit(1)\n print(flush=True)\n signal.pause()"
    )
    with script(code, tmp_path / "j") as running:
        running.stdout.readline()
        ago = time.time() - 1800
        os.utime(tmp_path / "j" / "ofs" / "mailer.ofs", (ago, ago))
        row = found(tmp_path / "j", code=1)["reader mailer"]
        assert "stuck at 1 or a later message: no commit for " in row["found"], "a consumer commits once for many"
        assert f"pid={running.pid}" in row["found"]
        health = sej("stat", "--health", "--stuck-after", "5m", tmp_path / "j")
        assert (health.returncode, b"stuck at 1" in health.stdout) == (1, True)
        assert sej("stat", "--health", "--stuck-after", "45m", tmp_path / "j").returncode == 0
        lines = sej("stat", "--prometheus", tmp_path / "j").stdout.decode().splitlines()
        labels = f'{{journal="{tmp_path / "j"}",reader="mailer"}}'
        assert f"sej_reader_running{labels} 1" in lines
        assert f"sej_reader_behind{labels} 2" in lines
        (lag,) = [float(line.split()[-1]) for line in lines if line.startswith("sej_reader_lag_seconds{")]
        assert 3600 <= lag < 7200
        running.kill()
    assert sej("stat", "--health", "--stuck-after", "5m", tmp_path / "j").returncode == 0  # it does not run any more
    assert found(tmp_path / "j")["reader mailer"]["level"] == "note"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_files_without_read_permission() -> None:
    """The command is imported before it changes its user, because that user cannot read Python either."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        for name in ("sound", "closed"):
            write(Path(place) / name, [b"x"])
        (Path(place) / "closed" / "jnl.lck").chmod(0o600)
        code = (
            "import os, sys; from sej.cli import main; sound, closed = sys.argv[1:]; main(['doctor', sound]);"
            "os.setgid(65534); os.setuid(65534); sys.exit(main(['doctor', closed]))"
        )
        words = [sys.executable, "-c", code, f"{place}/sound", f"{place}/closed"]
        done = subprocess.run(words, env=ENV, capture_output=True, check=False)
        put = code.replace("'doctor'", "'append'")
        refused = subprocess.run(
            [*words[:2], put, *words[3:]], stdin=subprocess.DEVNULL, env=ENV, capture_output=True, check=False
        )
        assert refused.returncode == 1
        assert re.search(
            rb"sej: \S+/closed/\S+: this user may not (read|write) it; run as its owner, root", refused.stderr
        )
        (Path(place) / "closed").chmod(0o700)
        look = code.replace("'doctor', closed", "'count', closed")
        hidden = subprocess.run([*words[:2], look, *words[3:]], env=ENV, capture_output=True, check=False)
        assert hidden.returncode == 1
        assert re.search(rb"sej: \S+/closed/jnl: this user may not read it; run as its owner, root", hidden.stderr)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert done.returncode == 1
    assert b"this user cannot read or cannot write " in done.stdout
    assert b"this user may not read it" in done.stdout


def test_many_journals(tmp_path: Path) -> None:
    for name in ("a.1.000", "a.1.001"):
        write(tmp_path / name, [b"x"])
    assert sej("doctor", tmp_path).stdout == b"ok       2 of 2 journals\n"
    rows = [json.loads(line) for line in sej("stat", "--json", tmp_path).stdout.splitlines()]
    assert [row["path"] for row in rows] == [str(tmp_path / "a.1.000"), str(tmp_path / "a.1.001")]
    (tmp_path / "empty").mkdir()
    assert sej("stat", tmp_path / "empty").returncode == 4
    (tmp_path / "a.1.000" / "jnl" / "foreign").touch()
    done = sej("doctor", tmp_path)
    assert done.returncode == 1
    assert f"problem  {tmp_path}/a.1.000: foreign file: ".encode() in done.stdout
    assert done.stdout.endswith(b"ok       1 of 2 journals\n")
    assert sej("doctor", tmp_path / "a.1.000" / "jnl").returncode == 4
    assert sej("doctor", tmp_path / "missing").returncode == 4


def test_checks_of_other_packages(journal: Path, tmp_path: Path) -> None:
    """A package contributes two checks, and one of them fails."""
    package = tmp_path / "site"
    (package / "litter-1.0.dist-info").mkdir(parents=True)
    (package / "litter-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: litter\nVersion: 1.0\n")
    (package / "litter-1.0.dist-info" / "entry_points.txt").write_text(
        "[sej.doctor]\nlitter = litter:check\nbroken = litter:broken\n"
    )
    (package / "litter.py").write_text(
        "def check(path):\n    yield 'litter', 'problem', f'3 files in {path.name}', 'sweep'\n"
        "def broken(path):\n    raise KeyError(path.name)\n"
    )
    env = {"PYTHONPATH": f"{package}:{ENV['PYTHONPATH']}"}
    done = sej("doctor", "--quick", journal, env=env)
    assert done.returncode == 1
    assert b"problem  litter: 3 files in journal\n         -> sweep\n" in done.stdout
    assert b"note     broken: this check failed: KeyError('journal')" in done.stdout
    (tmp_path / "left").mkdir()
    done = sej("doctor", tmp_path / "left", env=env)
    assert done.returncode == 1
    assert b"problem  litter: 3 files in left\n" in done.stdout


def test_other_distributions_with_our_names(journal: Path, tmp_path: Path) -> None:
    """One was installed over ours, one has another name, and one package is the user's own."""
    site = tmp_path / "site"
    for distribution, record in (("shard-2.0", "shard/__init__.py,,\n"), ("Lake-3.0", "hub/__init__.py,,\n")):
        info = site / f"{distribution}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution[:-4]}\nVersion: 2.0\n")
        (info / "RECORD").write_text(record)
    own = site / "pipeline"
    own.mkdir()
    (own / "__init__.py").touch()
    command = [sys.executable, "-m", "sej", "doctor", "--json", str(journal)]
    env = {**ENV, "PYTHONPATH": f"{site}{os.pathsep}{ENV['PYTHONPATH']}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
    rows = [row for row in map(json.loads, done.stdout.splitlines()) if row["what"] == "packages"]
    lake, pipeline, shard = rows
    assert done.returncode == 1
    assert shard["found"] == f"shard-2.0 is installed in {site}: it has files of the same names as ours"
    assert lake["found"] == "the distribution Lake has files of the package hub too"
    assert [row["level"] for row in (shard, lake, pipeline)] == ["problem", "problem", "note"]
    assert "--force-reinstall" in shard["do"]
    assert pipeline["found"].startswith(f"import pipeline gives {own}")
    assert done.stderr.count("UserWarning") == 1, "the import warns about the first only"
    done = subprocess.run(command[:-1], env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, [json.loads(line)["found"] for line in done.stdout.splitlines()]) == (
        1,
        [row["found"] for row in rows],
    )


def test_the_installation_is_checked_without_a_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    done = inside(monkeypatch, "doctor")
    what = b"ok       packages: hub, kestrel, pipeline, sej, shard, textqueue are those of sej-journals\n"
    assert (done.code, done.out) == (0, what)


def test_colours_are_for_terminals(journal: Path) -> None:
    assert b"\x1b" not in sej("doctor", journal).stdout
    with terminal("doctor", journal) as shown:
        code, text = ended(shown)
    assert (code, b"\x1b[32mok" in text) == (0, True)


def test_the_page_rounds_and_json_is_exact(journal: Path) -> None:
    size = sum(path.stat().st_size for path in (journal / "jnl").iterdir())
    rows = found(journal)
    assert rows["messages"]["values"]["bytes"] == size
    assert f"{size}" not in rows["messages"]["found"]
    assert isinstance(rows["disk"]["values"]["free_bytes"], int)
    assert re.search(r"^ok       disk: [\d.]+ [GT]iB free$", sej("doctor", journal).stdout.decode(), re.MULTILINE)
