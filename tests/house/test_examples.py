"""Every example runs: without arguments, in an empty working directory where it leaves what it makes, with exit code 0.

In an example a warning is an error, except in those named `spark_*.py`, because Spark's own code warns. These run in
this process, in the session that the tests share. The tutorial's program starts a Spark of its own, as a reader does.
"""

import runpy
from pathlib import Path

import pytest

from tests.house.house import ROOT, forked

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SPARK_EXAMPLES = [path for path in EXAMPLES if path.stem.startswith("spark_")]
PROGRAMS = [path for path in EXAMPLES if path not in SPARK_EXAMPLES]


@pytest.mark.parametrize("example", PROGRAMS, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    done = forked(str(example), example.read_text(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark_directory")
@pytest.mark.parametrize("example", SPARK_EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_example_runs_in_a_session_that_is_there(example: Path) -> None:
    runpy.run_path(str(example), run_name="__main__")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_listed(example: Path) -> None:
    text = example.read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) < 40
    assert f"[{example.name}]({example.name})" in (example.parent / "README.md").read_text()
