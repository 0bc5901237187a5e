"""Programs that use a hub and fork: gRPC's threads do not follow into the child."""

import subprocess
import sys
from pathlib import Path

import hub
from hub.wire import Server
from tests.hub.support import ROOT

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


def run(program: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_child_of_a_program_that_uses_a_hub_works_without_it(tmp_path: Path) -> None:
    printed = run(PROGRAM, tmp_path / "root").splitlines()
    refused = "cannot be used here: this process was forked from one that used gRPC"
    assert [refused in line for line in printed] == [True, True, False]
    assert printed[2] == "['a']"


def test_a_child_that_was_forked_before_uses_a_hub(tmp_path: Path) -> None:
    with hub.Store(tmp_path / "root") as store, Server(store, "127.0.0.1:0") as server:
        run(BEFORE, server.address)
        assert store.clients() == ["child", "parent"]
