"""Log records: none unless the program wants them; text or JSON with the options of the command."""

import json
import logging
import re
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

import sej as library
import shard
from kestrel import Queue as KestrelQueue
from tests.cli.command import ENV, sej
from tests.house.house import python
from tests.hub.page.browsing import started
from tests.sej.support import commit, write
from tests.textqueue.claiming import lined
from textqueue import TextQueue


def torn(path: Path) -> Path:
    write(path, [b"good"])
    segment = path / "jnl" / "0000000000000000.jnl"
    with segment.open("ab") as file:
        file.write(b"torn")
    return path


def test_json(tmp_path: Path) -> None:
    done = sej("--log-format", "json", "append", torn(tmp_path / "j"), stdin=b"x\n")
    (line,) = done.stderr.splitlines()
    row = json.loads(line)
    assert set(row) == {"time", "level", "logger", "message"}
    assert (row["level"], row["logger"]) == ("warning", "sej.writing.opening")
    assert "cut 4 torn bytes at 30" in row["message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}000Z", row["time"])


def test_text_and_levels(tmp_path: Path) -> None:
    write(tmp_path / "j", [b"x" * 60] * 5, segment_bytes=100)
    done = sej("--log-level", "info", "clean", "--max-bytes", "1", tmp_path / "j")
    (line,) = done.stderr.decode().splitlines()
    assert re.fullmatch(r"\S+Z info sej\.journal\.retention: .*: removed \d segments, up to .*\.jnl", line)
    assert sej("--log-level", "error", "append", torn(tmp_path / "k"), stdin=b"x\n").stderr == b""
    assert sej("append", torn(tmp_path / "l"), stdin=b"x\n").stderr == b""
    assert sej("--log-level", "loud", "count", tmp_path / "j").returncode == 2


def test_a_program_that_does_not_configure_logging_sees_nothing(tmp_path: Path) -> None:
    torn(tmp_path / "j")
    program = "import logging, sej; sej.Writer('j').close()"
    done = python(program, tmp_path, PYTHONPATH=ENV["PYTHONPATH"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_package_has_loggers_of_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = shard.Path(tmp_path / "shards", "orders", 1)
    with shard.Writer(path) as writer:
        writer.append_many([b"x"] * 4, [b"%d" % number for number in range(4)])
    worker = shard.Worker(path, "billing")
    worker.run(lambda _, __: worker.stop())
    (tmp_path / "jobs.tq").write_bytes(lined(b""))
    with TextQueue(tmp_path / "jobs.tq") as queue:
        queue.append("one")
        before = (tmp_path / "jobs.tq").read_bytes()
        message = queue.get_next()
        assert message is not None
        message.mark_as_cleared()
        (tmp_path / "jobs.tq").write_bytes(before)  # an editor saves what it read before the mark
        assert list(queue.messages()) == []
    with KestrelQueue(tmp_path / "spool", "cars") as cars:
        cars.put(b"x")
    with (tmp_path / "spool" / "cars").open("ab") as file:
        file.write(b"\x00\xff\xff\xff")
    KestrelQueue(tmp_path / "spool", "cars").close()
    library.Writer(torn(tmp_path / "j")).close()
    assert {record.name.partition(".")[0] for record in caplog.records} >= {"shard", "textqueue", "kestrel", "sej"}
    assert all(record.name in sys.modules for record in caplog.records)


def test_a_change_on_the_page_is_a_line_of_json(tmp_path: Path) -> None:
    write(tmp_path / "orders", [b"x"] * 5)
    commit(tmp_path / "orders", "mailer", 4)
    with started("--log-format", "json", "ui", tmp_path / "orders", "--port", "0", "--allow-changes") as running:
        url = running.stdout.readline().decode().split()[-1]
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"{url}change/reader?path={tmp_path / 'orders'}&reader=mailer&to=1", timeout=30) as answer:
            fields = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', answer.read().decode())
        form = urllib.parse.urlencode(dict(fields)).encode()
        request = urllib.request.Request(f"{url}change/reader", form, {"Origin": url.rstrip("/")})
        opener.open(request, timeout=30).close()
        row = json.loads(running.stderr.readline())
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    assert row["logger"] == "hub.page.changes"
    assert "moved reader 'mailer'" in row["message"]
    assert row["message"].split(":")[0] == socket.gethostbyname("localhost")
