"""A low limit of open files: the hub has fewer writers open.

If no descriptor is left, that is an error of the process: no journal counts as damaged.
"""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hub.wire import Client
from tests.sej.hooks import Script
from tests.sej.support import sample

PROGRAM = """
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
from sej.cli.stat import findings_of

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


def printed(*words: object) -> str:
    command = [sys.executable, "-W", "error", "-c", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(("most", "writers"), [(1104, 20), (114, 6)])
def test_many_journals_with_few_files(tmp_path: Path, most: int, writers: int) -> None:
    assert printed(PROGRAM, tmp_path, most) == f"24 {writers}\n"


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
