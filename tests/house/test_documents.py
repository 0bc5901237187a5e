"""What the documents say is so: their Python lines run in an empty directory, and their links lead somewhere."""

import re
import sys
from pathlib import Path

import pytest

from tests.house.house import ROOT, run

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("[!_]*.md"), *(ROOT / "docs").glob("[!_]*/**/*.md")])


def python_blocks() -> list[tuple[str, str]]:
    """(page:line, code) of every block of Python in the pages."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, block.start()) + 1
            found.append((f"{page.relative_to(ROOT)}:{line}", block[1]))
    return found


@pytest.mark.parametrize("code", [pytest.param(code, id=where) for where, code in python_blocks()])
def test_python_lines_run(code: str, tmp_path: Path) -> None:
    done = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr


def test_readme_shows_python() -> None:
    assert any(where.startswith("README.md:") for where, _ in python_blocks())


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()) if "://" not in link]
    assert not [link for link in links if not (page.parent / link).exists()]
