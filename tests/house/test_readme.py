"""README's Python lines run, as they stand, in an empty directory."""

import re
from pathlib import Path

import pytest

from tests.house.house import ROOT, python

BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_block_runs(block: str, tmp_path: Path) -> None:
    done = python(block, tmp_path)
    assert done.returncode == 0, done.stderr
    # What a line says that it prints, it prints.
    promised = re.findall(r"^.*\bprint\(.*# (.+)$", block, re.MULTILINE)
    assert done.stdout.splitlines() == promised
