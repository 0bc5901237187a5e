"""A fork that Python does not see, as of uWSGI."""

import sys
from pathlib import Path

import pytest

from tests.house.house import ROOT, run


@pytest.mark.both_codecs
@pytest.mark.parametrize("codec", ["", "python"])
def test_a_child_that_was_forked_in_c_is_refused_before_it_changes_anything(codec: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.crash.forks_in_c", str(tmp_path)]
    done = run(command, ROOT, SEJ_CODEC=codec)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
