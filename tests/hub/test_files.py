"""A low limit of open files: the hub raises the soft one. If the hard one is low, it has fewer writers open."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
import hub
from sej import Message

root, soft, hard = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
with hub.Store(root, max_open=20) as store:
    for number in range(24):
        for offset in range(3):
            store.put(f"client-{number}", "j", [Message(offset, 1, 0, b"", b"v")])
    print(len(store.sources()), store.open_writers)
"""

CONNECTIONS = """
import resource, socket, sys
import hub
from hub.wire import Client, Server
from sej import Message

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))
with hub.Store(sys.argv[1], max_open=1) as store, Server(store, "127.0.0.1:0") as server:
    host, _, port = server.address.rpartition(":")
    silent = [socket.create_connection((host, int(port))) for _ in range(700)]
    with Client(server.address, client_id="a") as client:
        print(client.put("j", [Message(0, 1, 0, b"", b"v")]))
    for each in silent:
        each.close()
"""


def printed(*words: object) -> str:
    command = [sys.executable, "-W", "error", "-c", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of that kind")
@pytest.mark.parametrize(("soft", "hard", "writers"), [(64, 4096, 20), (114, 114, 6)])
def test_many_journals_with_few_files(tmp_path: Path, soft: int, hard: int, writers: int) -> None:
    assert printed(PROGRAM, tmp_path, soft, hard) == f"24 {writers}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of that kind")
def test_many_connections(tmp_path: Path) -> None:
    assert printed(CONNECTIONS, tmp_path) == "1\n"
