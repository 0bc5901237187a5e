"""Every example runs: without arguments, in an empty working directory where it leaves what it makes, with exit code 0.

An example named `spark_*.py` starts Spark, whose own code warns; in the others a warning is an error.
"""

import sys
from pathlib import Path

import pytest

from tests.house.house import ROOT, run

EXAMPLES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.spark] if path.stem.startswith("spark_") else [])
    for path in sorted((ROOT / "examples").glob("*.py"))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    warnings = "default" if example.stem.startswith("spark_") else "error"
    done = run([sys.executable, "-W", warnings, example], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_short_and_listed(example: Path) -> None:
    text = example.read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) < 40
    assert f"[{example.name}]({example.name})" in (example.parent / "README.md").read_text()
