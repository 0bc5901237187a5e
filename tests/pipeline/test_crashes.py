import os
import sys
import tempfile

import pytest

from tests.house.house import ROOT, run

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Processes die here, not machines: no disk has to be waited for."""


@pytest.mark.parametrize("mode", ["append", pytest.param("overwrite", marks=pytest.mark.long), "text"])
def test_every_row_once_wherever_the_commit_dies(mode: str) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        done = run([sys.executable, ROOT / "tests" / "pipeline" / "crashing.py", folder, mode], ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > (15 if mode == "text" else 50)  # changes on the disk, each died before and inside
