"""Every example runs: without arguments, in an empty working directory where it leaves what it makes, with exit code 0.

An example named `spark_*.py` needs Spark, whose own code warns; in the others a warning is an error. The first of them
starts a Spark of its own, as its reader will. The others run in this process, in the session that the tests share.
"""

import runpy
import sys
from pathlib import Path

import pytest

from tests.house.house import ROOT, run

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SPARK_EXAMPLES = [path for path in EXAMPLES if path.stem.startswith("spark_")]
PROGRAMS = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.spark] if path in SPARK_EXAMPLES else [])
    for path in EXAMPLES
    if path not in SPARK_EXAMPLES[1:]
]


@pytest.mark.parametrize("example", PROGRAMS)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    warnings = "default" if example in SPARK_EXAMPLES else "error"
    done = run([sys.executable, "-W", warnings, example], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark_directory")
@pytest.mark.parametrize("example", SPARK_EXAMPLES[1:], ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_example_runs_in_a_session_that_is_there(example: Path) -> None:
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_listed(example: Path) -> None:
    text = example.read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) < 40
    assert f"[{example.name}]({example.name})" in (example.parent / "README.md").read_text()
