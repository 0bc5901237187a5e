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
from sej.cli.shared.readers import Sample, holder_of, readers_of
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
