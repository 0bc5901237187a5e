"""README's Python lines run, as they stand, in an empty directory."""

import re
import sys
from pathlib import Path

import pytest

from tests.house.house import ROOT, run

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[0] for block in BLOCKS])
def test_block_runs(block: str, tmp_path: Path) -> None:
    done = run([sys.executable, "-W", "error", "-c", block], tmp_path)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert not [link for link in links if "://" not in link and not (ROOT / link).exists()]
