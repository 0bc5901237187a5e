"""Each incident of docs/howto/incidents.md is made; what is shown is what the page says, and its way out leads out."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client import generate_latest

import hub
import sej as library
from hub.page.serving import PageServer
from hub.wire import Client, Server, ServerTLS
from hub.wire.metrics import register
from tests.cli.command import ENV, sej, start
from tests.cli.test_advice import PATH, overwrite
from tests.hub.page.browsing import Client as Browser
from tests.hub.support import at
from tests.queue.support import SMALL_FILE_SYSTEM

HOWTO = Path(__file__).resolve().parents[2] / "docs" / "howto" / "incidents.md"
RULES = HOWTO.parents[1] / "monitoring" / "sej-alerts.yaml"
CERTIFICATES = Path(__file__).resolve().parents[1] / "hub" / "certificates"
HOUR_NS = 3600 * 10**9
TASKS = """import threading

def send(item):
    pass

def hang(item):
    print(flush=True)
    threading.Event().wait()
"""
TABLE = {
    cells[0].replace("`", ""): cells[1:]
    for line in HOWTO.read_text().splitlines()
    if line.startswith("| ") and (cells := [cell.strip() for cell in line.strip("| ").split(" | ")])
}


class Shown(NamedTuple):
    """What is shown of an incident, in the order of the table; the metrics are for the alerts."""

    doctor: str
    health: str
    page: str
    metrics: str


def look(path: Path) -> Shown:
    with PageServer([path], port=0) as server:
        page = Browser(server.url).get("/").words
    doctor, health, metrics = (
        sej(*words, path).stdout.decode() for words in (["doctor"], ["stat", "--health"], ["stat", "--prometheus"])
    )
    return Shown(doctor, health, page, metrics)


def quoted(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def require_shown(name: str, shown: Shown, folder: Path, before: str = "") -> None:
    for cell, text in zip(TABLE[name], shown[:3], strict=False):
        for words in quoted(cell):
            pattern = ".*".join(re.escape(part) for part in words.split("…"))
            assert re.search(pattern, text), (name, words, text)
    assert (TABLE[name][1] == "–") is (shown.health == ""), (name, shown.health)
    require_alerts(quoted(TABLE[name][3]), shown.metrics, folder, before)


def require_alerts(names: list[str], metrics: str, folder: Path, before: str = "", *, fire: bool = True) -> None:
    """Let Prometheus run the rules on what was exported before an incident, and 20 minutes later; time begins at 0."""
    if shutil.which("promtool") is None:
        return  # tests/hub/test_monitoring.py is skipped then, and the last lines of pytest name it
    old = dict(line.rsplit(" ", 1) for line in before.splitlines() if not line.startswith("#"))
    series = []
    for name, text in (line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#")):
        value = float(text) - (time.time() if re.match(".*_(arrival|expires)_seconds", name) else 0)
        grows = "+1" if name in old and float(old[name]) < value else "+0"
        series.append({"series": name, "values": f"{float(old.get(name, value))}+0x20 {value}{grows}x30"})
    fired = 'count by (alertname) (ALERTS{alertstate="firing",alertname=~"NAMES"})'.replace("NAMES", "|".join(names))
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names if fire]
    expected = [{"expr": f"{fired} > bool 0", "eval_time": "45m", "exp_samples": samples}]
    rules = {"rule_files": [str(RULES)], "evaluation_interval": "1m"}
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": expected}]
    (folder / "alerts.json").write_text(json.dumps(rules | {"tests": tests}))  # JSON is YAML
    words = ["promtool", "test", "rules", str(folder / "alerts.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def follow(name: str, folder: Path, which: int = 0, **more: str) -> None:
    """Run a command of the way out."""
    names = {"DIR": str(folder / "j"), "COPY": str(folder / "copy"), "SIZE": "3000", "ROOT": str(folder / "hub")} | more
    command = re.sub("|".join(names), lambda found: names[found[0]], quoted(TABLE[name][4])[which])
    done = subprocess.run(command, shell=True, cwd=folder, env={**ENV, "PATH": PATH}, capture_output=True, check=False)
    assert done.returncode == 0, (command, done.stderr.decode())


def is_over(name: str, folder: Path) -> None:
    text = sej("doctor", folder / "j").stdout.decode()
    (words,) = quoted(TABLE[name][0])
    assert not re.search(".*".join(re.escape(part) for part in words.split("…")), text), (name, text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal in some segments, and a copy of it."""
    (tmp_path / "tasks.py").write_text(TASKS)
    with library.Writer(tmp_path / "j", segment_bytes=2000) as writer:
        for number in range(150):
            writer.append(b"order %d" % number, timestamp=time.time_ns() - 2 * HOUR_NS)
    shutil.copytree(tmp_path / "j", tmp_path / "copy")
    return tmp_path


def first_segment(path: Path) -> Path:
    return sorted((path / "jnl").iterdir())[0]


DAMAGES: dict[str, Callable[[Path], object]] = {
    "corrupt segment": lambda path: overwrite(first_segment(path), 200, bytes(60)),
    "changed value": lambda path: overwrite(first_segment(path), 60, b"?"),
    "damaged id": lambda path: (path / "id").write_bytes(b""),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage(name: str, folder: Path) -> None:
    DAMAGES[name](folder / "j")
    require_shown(name, look(folder / "j"), folder)
    follow(name, folder, SEGMENT=first_segment(folder / "j").name)
    is_over(name, folder)


FULL = """import json, os, sys, sej
from pathlib import Path
from tests.cli.test_incidents import follow, look
folder, name = Path(sys.argv[1]), sys.argv[2]
try:
    with sej.Writer(folder / "j", segment_bytes=2000 if name == "no inode" else 200_000) as writer:
        while True:
            writer.append_many([b"x" * 900] * 3)
except (sej.WriterFailedError, OSError):
    pass
shown = look(folder / "j")
assert name == "full disk" or os.statvfs(folder).f_ffree == 0
follow(name, folder)
with sej.Writer(folder / "j") as writer:
    writer.append(b"again")
print(json.dumps(shown))
"""


def in_a_small_disk(size: str, folder: Path, program: str, *words: str) -> Any:
    """Return what a program prints as JSON that runs with a file system of its own in a folder."""
    mount = [part.replace("size=4m", size) for part in SMALL_FILE_SYSTEM]
    command = [*mount, str(folder), sys.executable, "-c", program, str(folder), *words]
    done = subprocess.run(command, env={**ENV, "PATH": PATH}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("name", "size"), [("full disk", "size=8m"), ("no inode", "size=50m,nr_inodes=80")])
def test_a_small_disk(name: str, size: str, tmp_path: Path) -> None:
    require_shown(name, Shown(*in_a_small_disk(size, tmp_path, FULL, name)), tmp_path)


def hours_ago(path: Path, reader: str) -> None:
    os.utime(path / "ofs" / f"{reader}.ofs", (time.time() - 7200, time.time() - 7200))


def test_a_stuck_reader(folder: Path) -> None:
    with library.Offset(folder / "j", "billing") as kept:
        kept.commit(5)
        hours_ago(folder / "j", "billing")
        require_shown("stuck reader", look(folder / "j"), folder)
    with library.Offset(folder / "j", "billing") as kept:
        kept.commit(150)
        is_over("stuck reader", folder)


def test_a_worker_that_hangs_and_then_dies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    library.open_queue(folder / "j", create=True).close()
    with start("worker", folder / "j", "tasks:hang") as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        hours_ago(folder / "j", "queue")
        shown = look(folder / "j")
        worker.send_signal(signal.SIGKILL)
    require_shown("hanging handler", shown, folder)
    is_over("hanging handler", folder)
    require_shown("dead worker", look(folder / "j"), folder)
    for name in ("hanging handler", "dead worker"):
        command = next(one for one in quoted(TABLE[name][4]) if one.startswith("sej worker"))
        done = sej(*command.replace("DIR", str(folder / "j")).split()[1:], "--until-empty")
        assert done.returncode == 0
    is_over("dead worker", folder)


def test_dead_letters(folder: Path) -> None:
    with library.open_queue(folder / "j", create=True, max_attempts=1) as queue:
        for item in queue.get_many(150, timeout=0)[:1]:
            item.fail("no such user")
    require_shown("dead letters", look(folder / "j"), folder)
    for which in range(2):
        follow("dead letters", folder, which)
    is_over("dead letters", folder)


def seen_by(server: Server, doctor: str = "") -> Shown:
    """What a hub shows."""
    with PageServer([server.root], port=0, hub=server) as page:
        words = Browser(page.url).get("/", **{"in": server.root}).words
    return Shown(doctor, "", words, generate_latest(register(server)).decode())


def test_a_refused_client(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("")
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0", tokens=tmp_path / "tokens") as server:
        before = seen_by(server).metrics
        with Client(server.address, client_id="EWR", token="x" * 43) as client, pytest.raises(hub.AccessError):
            client.put("flights", [at(0, 5)])
        require_shown("refused client", seen_by(server), tmp_path, before)
        token, line = sej("hub", "token", "--write", "EWR").stdout.decode().splitlines()
        (tmp_path / "new").write_text(f"{line}\n")
        (tmp_path / "new").replace(tmp_path / "tokens")
        with Client(server.address, client_id="EWR", token=token) as client:
            client.put("flights", [at(0, 5)])
        assert store.end_offset("EWR", "flights") == 1


def test_an_expired_certificate(tmp_path: Path) -> None:
    expired = ServerTLS(CERTIFICATES / "expired.pem", CERTIFICATES / "expired.key")
    with hub.Store(tmp_path / "hub") as store:
        with pytest.raises(library.SejError, match="2024-02-29T12:34:56Z; renew the file, then start"):
            Server(store, "127.0.0.1:0", tls=expired)
        for days in (1, 365):
            request = f"req -x509 -newkey rsa:2048 -nodes -days {days} -subj /CN=hub -keyout hub.key -out hub.pem"
            subprocess.run(["openssl", *request.split()], cwd=tmp_path, capture_output=True, check=True)
            with Server(store, "127.0.0.1:0", tls=ServerTLS(tmp_path / "hub.pem", tmp_path / "hub.key")) as server:
                metrics = seen_by(server).metrics
            require_alerts(quoted(TABLE["expired certificate"][3]), metrics, tmp_path, fire=days == 1)


def test_a_silent_edge(folder: Path) -> None:
    with hub.Store(folder / "hub") as store, Server(store, "127.0.0.1:0") as server:
        store.put("EWR", "j", list(library.Journal(folder / "copy").tail(150))[:1])
        long_ago = time.time() - 2 * 86_400
        os.utime(first_segment(folder / "hub" / "EWR.j"), (long_ago, long_ago))
        require_shown("silent edge", seen_by(server), folder)
        follow("silent edge", folder, ADDRESS=server.address)
        assert library.Journal(folder / "hub" / "EWR.j").end_offset == 150


LITTLE_DISK = """import json, sys, hub
from pathlib import Path
from hub.wire import Client, Server
from tests.cli.command import sej
from tests.cli.test_incidents import follow, seen_by
from tests.hub.support import at
folder = Path(sys.argv[1])
with hub.Store(folder / "hub", min_free_bytes=6 << 20, segment_bytes=100_000) as store:
    with Server(store, "127.0.0.1:0") as server, Client(server.address, client_id="EWR") as client:
        before = seen_by(server).metrics
        try:
            for offset in range(1000):
                client.put("flights", [at(offset, 5, b"x" * 20_000)])
        except hub.DiskLowError:
            pass
        shown = seen_by(server, sej("doctor", folder / "hub" / "EWR.flights").stdout.decode())
        follow("hub's disk nearly full", folder)
        client.put("flights", [at(store.end_offset("EWR", "flights"), 5)])
print(json.dumps([before, shown]))
"""


def test_a_hub_with_little_disk(tmp_path: Path) -> None:
    """In a mount namespace of its own, with a disk of 8 MiB."""
    before, shown = in_a_small_disk("size=8m", tmp_path, LITTLE_DISK)
    require_shown("hub's disk nearly full", Shown(*shown), tmp_path, before)


def test_every_incident_is_tested() -> None:
    text = Path(__file__).read_text()
    assert all(f'"{name}"' in text for name in list(TABLE)[1:])
    assert len(TABLE) == 14
