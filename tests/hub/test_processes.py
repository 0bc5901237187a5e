"""Programs that use a hub: with few open files, and forked."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hub.wire import Client
from tests.hub.support import ROOT, serving
from tests.sej.hooks import Script
from tests.sej.support import sample

WRITERS = """
import resource, sys
import hub
from sej import Message

root, most = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
with hub.Store(root, max_open=20) as store:
    for number in range(24):
        for offset in range(3):
            store.put(f"client-{number}", "j", [Message(offset, 1, 0, b"", b"v")])
    print(len(store.sources()), store.open_writers)
"""

LOOKS = """
import os, resource, sys
import hub
from sej import Message
from sej.cli.shared.findings import findings_of

root, left = sys.argv[1], int(sys.argv[2])
with hub.Store(root, max_open=20) as store:
    for number in range(100):
        store.put(f"client-{number}", "j", [Message(0, 1, 0, b"", b"v")])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with hub.Merge(root, "r", on_error="skip") as merge:
    taken = []
    try:
        while left:
            taken.append(os.dup(0))
    except OSError:
        for fd in taken[:left]:
            os.close(fd)
    for look in (
        lambda: (len(list(merge)), len(merge.skipped)),
        lambda: sum(journal.error is None for journal in hub.stats(root)),
        lambda: [each for each in findings_of(f"{root}/client-0.j", quick=True) if each.level == "problem"],
    ):
        try:
            print(look())
        except (hub.SourceError, OSError) as error:
            print(type(error).__name__, "Too many open files" in str(error), "ulimit -n" in str(error), merge.skipped)
"""


SERVE = """
import resource
from hub.cli import app

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
app(prog_name="sej hub")
"""


def printed(program: str, *words: object) -> str:
    command = [sys.executable, "-W", "error", "-c", program, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(("most", "writers"), [(1104, 20), (114, 6)])
def test_many_journals_with_few_files(tmp_path: Path, most: int, writers: int) -> None:
    assert printed(WRITERS, tmp_path, most) == f"24 {writers}\n"


@pytest.mark.parametrize(
    ("left", "answers"),
    [(0, "(100, 0)\n100\n[]\n"), (1, "SourceError True True {}\nOSError True False {}\nOSError True False {}\n")],
)
def test_no_journal_counts_as_damaged_for_lack_of_descriptors(tmp_path: Path, left: int, answers: str) -> None:
    assert printed(LOOKS, tmp_path, left) == answers


@pytest.mark.long
def test_connections_that_say_nothing_leave_files_for_puts_and_end(tmp_path: Path) -> None:
    serve = [sys.executable, "-c", SERVE, "serve", "--address", "127.0.0.1:0", str(tmp_path)]
    with Script(serve, stdout=subprocess.PIPE, text=True) as server, contextlib.ExitStack() as stack:
        stack.callback(server.terminate)
        host, port = server.stdout.readline().strip().rpartition(" ")[2].split(":")
        client = stack.enter_context(Client(f"{host}:{port}", client_id="a"))
        assert client.put("j", sample(1)) == 1
        silent = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(400)]
        for number in range(20):
            assert client.put(f"other-{number}", sample(1)) == 1
        for each in silent:
            each.settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                while each.recv(1 << 16):
                    pass  # after 10 s the hub ends it
        with Client(f"{host}:{port}", client_id="b") as another:
            assert another.put("j", sample(1)) == 1


# --- programs that use a hub and fork: grpc's threads do not follow into the child


PROGRAM = """
import os, subprocess, sys
import hub
from hub.wire import Client, Server
from sej import ClosedError, Message

def put(client, offset):
    client.put("j", [Message(offset, offset + 1, 0, b"", b"v")])

def in_child(call):
    child = os.fork()
    if child == 0:
        try:
            call()
        except ClosedError as error:
            print(error, flush=True)
        sys.exit()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def new(name):
    with Client(server.address, client_id=name) as client:
        put(client, 0)

with hub.Store(sys.argv[1]) as store, Server(store, "127.0.0.1:0") as server:
    clients = []
    for offset in range(20):
        clients.append(Client(server.address, client_id="a"))
        put(clients[-1], offset)
        assert in_child(lambda: None) == 0
        subprocess.run(["true"], preexec_fn=lambda: None, check=True)
    assert in_child(lambda: put(clients[0], 20)) == 0
    assert in_child(lambda: new("b")) == 0
    assert in_child(clients[0].close) == in_child(server.close) == 0
    put(clients[0], 20)
    print(sorted(store.clients()))
"""

BEFORE = """
import os, sys
from hub.wire import Client
from sej import Message

child = os.fork()
with Client(sys.argv[1], client_id="child" if child == 0 else "parent") as client:
    client.put("j", [Message(0, 1, 0, b"", b"v")])
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_a_program_that_uses_a_hub_works_without_it(tmp_path: Path) -> None:
    lines = printed(PROGRAM, tmp_path / "root").splitlines()
    refused = "cannot be used here: this process was forked from one that used gRPC"
    assert [refused in line for line in lines] == [True, True, False]
    assert lines[2] == "['a']"


def test_a_child_that_was_forked_before_uses_a_hub(tmp_path: Path) -> None:
    with serving(tmp_path / "root") as (store, server):
        printed(BEFORE, server.address)
        assert store.clients() == ["child", "parent"]
