"""What the command prints: each page in transcripts/ is a doctest, which runs in a directory that is empty before."""

import doctest
import os
import re
import shlex
import time
from pathlib import Path

import pytest

import hub
import kestrel
import sej as library
import shard
import textqueue
from kestrel import segmented
from tests.cli import command

USAGE = re.compile(r"^Usage: sej .*\nTry 'sej .*' for help\.\n\n", re.MULTILINE)
PAGES = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def sej(line: str, stdin: bytes = b"") -> None:
    """Run a command line; print its output, each error after an exclamation mark, and an exit code other than 0.

    A tab is printed as two spaces, another control character as Python writes it, and the current directory as a dot.
    Of wrong usage, the usage is left out.
    """
    done = command.sej(*shlex.split(line), stdin=stdin)
    for mark, data in (("", done.stdout), ("! ", done.stderr)):
        text = data.decode(errors="backslashreplace").replace(str(Path.cwd()), ".").replace("\t", "  ")
        for printed in USAGE.sub("", text).splitlines():
            print((mark + "".join(one if one.isprintable() else repr(one)[1:-1] for one in printed)).rstrip())
    if done.returncode:
        print(f"exit code {done.returncode}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"sej": sej, "library": library, "hub": hub, "kestrel": kestrel, "segmented": segmented, "shard": shard}
    names |= {"textqueue": textqueue, "os": os, "time": time, "Path": Path}
    flags = doctest.ELLIPSIS | doctest.REPORT_ONLY_FIRST_FAILURE
    failed, _ = doctest.testfile(str(page), module_relative=False, globs=names, optionflags=flags, encoding="utf-8")
    assert not failed, "standard output shows the first line that differs"
