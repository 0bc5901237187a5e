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


@pytest.mark.skipif(sys.platform == "win32", reason="no limits of that kind")
@pytest.mark.parametrize(("soft", "hard", "writers"), [(64, 4096, 20), (114, 114, 6)])
def test_many_journals_with_few_files(tmp_path: Path, soft: int, hard: int, writers: int) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path), str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"24 {writers}\n", "")
