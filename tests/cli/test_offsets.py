"""Readers and their kept offsets: sej offset, reset, follow."""

import json
import os
import re
import shlex
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import sej as library
from sej.cli.shared.readers import holder_of, readers_of
from sej.cli.shared.watched import Sample
from sej.cli.stat import _table
from sej.system.disk import OsFile
from tests.cli.command import sej, start
from tests.sej.support import commit, write
from tests.ticks import next_tick


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    write(path, [b"value %d" % number for number in range(10)])
    commit(path, "billing", 7)
    return path


def test_offset_is_alone_on_its_line(journal: Path) -> None:
    assert sej("offset", journal, "billing").stdout == b"7\n"
    assert sej("offset", journal).stdout == b"first offset\t0\nnext offset\t10\nbilling\t7\t3 behind\tnot running\n"
    done = sej("offset", journal, "bill")
    assert (done.returncode, b"billing" in done.stderr) == (4, True)
    with library.Offset(journal, "billing"):
        row = json.loads(sej("offset", "--json", journal).stdout)
    assert (row["name"], row["offset"], row["behind"]) == ("billing", 7, 3)
    assert row["holder"].startswith("pid=")


def test_a_reader_of_the_original_is_shown_and_moved(journal: Path) -> None:
    (journal / "ofs" / "host:1.ofs").write_bytes((3).to_bytes(8, "big"))
    (journal / "ofs" / "far.ofs").write_bytes((2**63 + 5).to_bytes(8, "big"))
    done = sej("offset", journal)
    assert b"host:1\t3\t7 behind\tnot running\n" in done.stdout
    assert b"far\t9223372036854775813\t0 behind" in done.stdout
    assert sej("reset", "--yes", journal, "host:1", "5").returncode == 0
    assert sej("offset", journal, "host:1").stdout == b"5\n"
    assert sej("reset", "--yes", "--create", journal, "host:2", "5").returncode != 0


def test_the_terminal_obeys_no_name_of_a_reader(journal: Path) -> None:
    name = "a\nsej: all is well\x1b[2J\u009b31m\r[red]"
    (journal / "ofs" / f"{name}.ofs").write_bytes((99).to_bytes(8, "big"))
    shown = b"a\\nsej: all is well\\x1b[2J\\u009b31m\\r[red]"
    for words in (["offset"], ["stat"], ["stat", "--health"], ["doctor", "--quick"], ["top", "--once"]):
        done = sej(*words, journal)
        printed = done.stdout + done.stderr
        assert shown in printed or repr(name).encode() in printed, words
        assert not set("\x1b\r\u009b") & set(printed.decode())
        assert b"\nsej: all is well" not in printed
    assert b"\nsej: all is well" not in sej("offset", journal, "other").stderr
    rows = [Sample(str(journal), 0, readers=tuple((one, None) for one in readers_of(library.Journal(journal))))]
    out = StringIO()
    Console(width=200, file=out).print(_table(rows, 10, 200))
    assert shown.decode() in out.getvalue()


def test_reset_shows_and_asks(journal: Path) -> None:
    done = sej("reset", journal, "billing", "2", stdin=b"n\n")
    assert done.returncode == 1
    assert b"5 messages will be read again" in done.stdout
    assert b"value 2" in done.stdout
    assert library.read_offset(journal, "billing") == 7
    assert sej("reset", journal, "billing", "2").returncode == 1  # no answer on standard input
    assert library.read_offset(journal, "billing") == 7
    assert sej("reset", journal, "billing", "2", stdin=b"y\n").returncode == 0
    assert library.read_offset(journal, "billing") == 2
    done = sej("reset", "--yes", journal, "billing", "end")
    assert b"8 messages will be skipped" in done.stdout
    assert library.read_offset(journal, "billing") == 10
    assert sej("reset", "--yes", journal, "billing", "1h ago").returncode == 0
    assert library.read_offset(journal, "billing") == 0


def test_reset_accepts_the_options_of_the_original(journal: Path) -> None:
    commit(journal, "billing", 7)
    words = ["reset", "--offset", "billing", "--start", "2000-01-01T00:00:00", str(journal)]
    shown = sej(*words)
    assert shown.returncode == 0
    assert b"7 messages will be read again" in shown.stdout
    assert b"nothing was changed; --reset does it" in shown.stdout
    assert library.read_offset(journal, "billing") == 7
    assert sej(*words, "--reset").returncode == 0
    assert library.read_offset(journal, "billing") == 0
    assert sej(*words, "billing").returncode == 2
    assert sej("reset", "--start", "2000-01-01T00:00:00", journal).returncode == 2
    assert sej("reset", "--offset", "typo", "--start", "2000-01-01T00:00:00", journal).returncode == 4


def test_reset_refuses(journal: Path) -> None:
    assert sej("reset", "--yes", journal, "billing", "11").returncode == 2
    assert sej("reset", "--yes", journal, "billing").returncode == 2
    assert sej("reset", "--yes", journal, "typo", "1").returncode == 4
    assert library.read_offset(journal, "typo") is None
    with library.Offset(journal, "billing"):
        assert sej("reset", "--yes", journal, "billing", "1").returncode == 3
    assert sej("reset", "--yes", "--create", journal, "../x", "1").returncode == 2
    assert sej("reset", "--yes", "--create", journal, "typo", "1").returncode == 0
    assert library.read_offset(journal, "typo") == 1
    assert sej("reset", "--yes", "--remove", journal, "typo").returncode == 0
    assert set(library.Journal(journal).offsets()) == {"billing"}


@pytest.mark.parametrize("data", [b"\0\0\0", (99).to_bytes(8, "big")])
def test_reset_mends_a_file_that_cannot_be_right(journal: Path, data: bytes) -> None:
    file = journal / "ofs" / "billing.ofs"
    next_tick(file)
    file.write_bytes(data)
    assert sej("offset", journal).returncode == 1
    assert sej("doctor", "--quick", journal).returncode == 1
    assert sej("stat", "--health", journal).returncode == 1
    assert sej("reset", "--yes", journal, "billing", "3").returncode == 0
    assert library.read_offset(journal, "billing") == 3
    kept = journal / "kept" / "billing.ofs"
    assert not kept.exists() if len(data) == 8 else kept.read_bytes() == data


def test_follow_continues_where_its_reader_stopped(journal: Path) -> None:
    done = sej("follow", "--reader", "billing", "--timeout", "0", journal)
    assert [line.split(b"\t")[0] for line in done.stdout.splitlines()] == [b"7", b"8", b"9"]
    assert library.read_offset(journal, "billing") == 10
    assert sej("follow", "--reader", "billing", "--timeout", "0", journal).stdout == b""
    assert sej("follow", "--reader", "billing", "--start", "3", journal).returncode == 2
    assert len(sej("follow", "--start", "5", "--timeout", "0", journal).stdout.splitlines()) == 5


def test_follow_into_a_closed_pipe(journal: Path) -> None:
    write(journal, [b"x" * 100] * 20_000)
    with start("follow", "--reader", "billing", journal) as running:
        assert running.stdout.readline()
        running.stdout.close()
        assert running.wait(20) == 0
        assert running.stderr.read() == b""
    kept = library.read_offset(journal, "billing")
    assert kept is not None
    assert kept < 20_010  # messages that were not read are not committed


def test_looking_takes_no_lock(disk_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a writer that opens while `sej stat` looks would be refused."""
    with library.Writer(disk_path / "j") as writer:
        writer.append(b"x")
        assert str(holder_of(str(disk_path / "j" / "jnl.lck"))).startswith(f"pid={os.getpid()} ")
    probed: list[str] = []

    def lock(file: OsFile, **_: bool) -> bool:
        probed.append(file.path)
        return True

    monkeypatch.setattr(OsFile, "lock", lock)
    assert holder_of(str(disk_path / "j" / "jnl.lck")) is None
    first = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC and os.major(os.stat(disk_path).st_dev) != 0
    assert bool(probed) is not first


def test_a_consumer_that_stops_at_a_message_names_the_command_that_skips_it(tmp_path: Path) -> None:
    path = tmp_path / "a b"
    write(path, [b"3", b"many"])
    consumer = library.Consumer(path, "counting", max_attempts=1)
    with pytest.raises(library.RetriesExhaustedError) as raised:
        consumer.run(lambda message: print(int(message.value)), timeout=0.0)
    named = re.search("or skip the message: `sej (.*)`$", str(raised.value))
    assert named is not None
    assert b"1 message will be skipped" in sej(*shlex.split(named[1]), "--yes").stdout
    assert consumer.run(lambda message: print(int(message.value)), timeout=0.0) == 0


def test_a_work_queue_is_not_moved_or_removed(tmp_path: Path) -> None:
    """Its done items would be delivered again; its delays, attempts and leases would be gone."""
    path = tmp_path / "mails"
    with library.open_queue(path) as queue:
        queue.put_many([b"alice", b"bob"])
        queue.put(b"later", delay_s=3600)
        item = queue.get(timeout=0)
        assert item is not None
        item.done()
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    for words in (("--remove", "queue"), ("queue", "first"), ("queue", "1"), ("queue", "end"), ("queue.queue", "0")):
        done = sej("reset", "--yes", "--create", path, *words)
        assert (done.returncode, done.stdout.count(b"next")) == (2, 0), words
        assert b"work queue 'queue'" in done.stderr and b"`sej queue purge --name queue " in done.stderr, words
    assert sej("follow", "--reader", "queue", "--timeout", "0s", path).returncode == 2
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    with library.open_queue(path) as queue:
        assert tuple(queue.stats().values())[:4] == (1, 1, 0, 1)
    out = shlex.split(sej("reset", "--remove", path, "queue").stderr.decode().split("`")[1])
    assert sej(*out[1:], "--yes").returncode == 0
    with library.open_queue(path) as queue:
        assert tuple(queue.stats().values())[:3] == (0, 0, 0)


@pytest.mark.parametrize("damage", ["lost", "changed", "short"])
def test_a_work_queue_whose_offset_cannot_be_right_gets_the_right_one(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "mails"
    with library.open_queue(path) as queue:
        queue.put_many([b"alice", b"bob", b"carol"])
        for item in queue.get_many(2, timeout=0):
            item.done()
    if damage == "lost":
        os.truncate(path / "jnl" / "0000000000000000.jnl", 0)
        (path / "idx" / "durable").unlink(missing_ok=True)
    else:
        (path / "ofs" / "queue.ofs").write_bytes((7).to_bytes(8, "big")[: 8 if damage == "changed" else 3])
    with pytest.raises(library.SejError):
        library.open_queue(path)
    rows = map(json.loads, sej("doctor", "--json", path).stdout.splitlines())
    (row,) = [row for row in rows if row["what"] == "reader queue"]
    words = shlex.split(row["do"].split("`")[1])
    right = 0 if damage == "lost" else 2
    assert words == ["sej", "reset", str(path), "queue", str(right)]
    for place in ("1", "end") if damage != "lost" else ():
        assert sej("reset", "--yes", path, "queue", place).returncode == 2
    assert sej(*words[1:], "--yes").returncode == 0
    with library.open_queue(path) as queue:
        queue.put(b"dave")
        assert [item.value for item in queue.get_many(9, timeout=0)] == [b"carol", b"dave"][right == 0 :]
