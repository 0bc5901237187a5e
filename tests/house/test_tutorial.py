"""The tutorial, followed as a person would: in a terminal, in an empty directory, with the wheel installed.

A block of Python is saved under the name in its first line. Each line of a shell block is typed. A text block after it
is the output of these lines. In it, ``…`` matches any text of a line, or alone for any lines. Warnings are errors.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.house.house import ROOT, matches, typed

BLOCKS = re.findall(
    r"^```(sh|python|text)\n(.*?)^```", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL
)
OURS = {"sej sql ": "-m sej sql ", "python flights.py": "flights.py", "python delays.py": "delays.py"}
"""What needs DuckDB and the flights, which are not installed a second time."""


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory, clean: Path) -> dict[str, str]:
    """What each line printed; it must end well."""
    directory = tmp_path_factory.mktemp("first-hour")
    env = {"PATH": f"{clean.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONWARNINGS": "error"}
    printed: dict[str, str] = {}
    output = ""
    for language, code in BLOCKS:
        if language == "text":
            assert matches(code, output), f"the page says\n{code}\nit was\n{output}"
            continue
        if language == "python":
            (directory / code.split("\n", 1)[0].removeprefix("# ")).write_text(code)
            continue
        output = ""
        for line in code.splitlines():
            start = next(filter(line.startswith, OURS), "")
            ours = f"{sys.executable} {OURS[start]}{line.removeprefix(start)}" if start else line
            ended, answer = typed(ours, directory, **env)
            assert ended == 0 and "Traceback" not in answer, f"$ {line}\n{answer}\nexit code {ended}"
            output += answer
            printed[line] = printed.get(line, "") + answer
    return printed


def test_the_first_hour(followed: dict[str, str]) -> None:
    printed = followed
    assert printed["sej count orders"] == "3\n"
    assert printed["python producer.py"] == "appended as message 3\n"
    # Run three times: four messages, then nothing, then the new one.
    assert [line.split()[0] for line in printed["python reader.py"].splitlines()] == ["0", "1", "2", "3", "4"]
    assert printed["python reader.py"].endswith("4 b'carol' b'1 melon'\n")
    assert "invalid literal" in printed["python jobs.py"]
    workers = printed["python worker.py & python worker.py & wait"]
    assert re.search(r"^worker \d+, shard \d", workers, re.MULTILINE)  # lines of two processes may mix
    assert sum(map(int, re.findall(r"handled (\d+)", workers))) == 100
    assert "mailing order" in next(text for line, text in printed.items() if line.startswith("sej shard work"))
    assert "sending to alice" in printed["sej queue get mails -- xargs echo sending"]
    assert printed["cat todo.tq"].startswith("#queue\n\\seq=000000000001\n=ship order 17\n-call carol\n")
    assert printed["sej tail todo"].count("\n") == 2
    assert "sound: 1 segment" in printed["sej verify orders"]
