"""The tutorial, followed by a script: every block of it, in order, in one directory that was empty before."""

import os
import re
import sys
from pathlib import Path

from tests.house.house import ROOT, run

BLOCKS = re.findall(
    r"^```(sh|python)\n(.*?)^```", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL
)


def test_the_first_hour(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    output = []
    for language, code in BLOCKS:
        command = ["sh", "-euc", code] if language == "sh" else [sys.executable, "-W", "error", "-c", code]
        done = run(command, tmp_path, PATH=path)
        assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"
        output.append(done.stdout)
    assert len(BLOCKS) > 10
    assert output[0].splitlines()[0] == "3"
    assert "ship order 17" in "".join(output)
