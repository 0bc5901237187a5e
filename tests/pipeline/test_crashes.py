import sys
from pathlib import Path

import pytest

from tests.house.house import ROOT, run


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_every_row_once_wherever_the_commit_dies(tmp_path: Path, mode: str) -> None:
    program = ROOT / "tests" / "pipeline" / "crashing.py"
    done = run([sys.executable, program, tmp_path, mode], ROOT)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15  # changes on the disk, each died before and after
