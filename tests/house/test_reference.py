"""The reference: it builds without a warning, and it has every public name."""

import importlib
import re
import sys
import types
from pathlib import Path

import pytest

from tests.house.house import PACKAGES, ROOT, run

DOORS = [*PACKAGES, "hub.wire", "kestrel.segmented", "sej.aio", "pipeline.jobs"]


def listed() -> set[str]:
    """What the pages of the reference name."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = r"^(?:\.\. [\w:]+:: )?((?:sej|shard|hub|textqueue|kestrel|pipeline)\.\S+)$"
    return {name for page in pages for name in re.findall(named, page.read_text(), re.MULTILINE)}


@pytest.mark.long
def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    options = "-q -W --keep-going -b dummy -D smartquotes=0"  # without the quotes a tenth of the time
    done = run([sys.executable, "-m", "sphinx", *options.split(), ROOT / "docs", tmp_path], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", DOORS)
def test_it_has_every_public_name(package: str) -> None:
    module = importlib.import_module(package)
    own = {
        name
        for name in module.__all__
        if not isinstance(value := getattr(module, name), types.ModuleType)
        and getattr(value, "__name__", name) == name  # else a second name of something that is there
    }
    missing = {f"{package}.{name}" for name in own} - listed()
    assert not missing, "a public name has a line in docs/reference"
