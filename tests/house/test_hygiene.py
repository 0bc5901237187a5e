"""The tree stays small, self-contained and of one mind about formats."""

import ast
import doctest
import importlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.house import ROOT, has_compiler, python, sources, tracked

MAX_FILE_BYTES = 1 << 20
# Written so that this file does not find itself.
FOREIGN = re.compile(rb"\.\./s[h]ared|(?<![A-Za-z0-9_.])/(?:w[o]rk|f[a]rm|r[o]ot|home/[a-z]+)/")


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_only_format_modules_know_struct() -> None:
    own = {
        "sej/journal/index.py",
        "sej/journal/offset_check.py",
        "sej/system/durable.py",
    }  # the only readers of their files
    elsewhere = [
        str(path.relative_to(ROOT))
        for path in sources()
        if "struct" in path.read_text() and "struct" in imports(path) and not path.stem.endswith("format")
    ]
    assert set(elsewhere) == own, "one format, one file: import its structs from the package's format module"


def test_no_large_file() -> None:
    large = [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > MAX_FILE_BYTES]
    assert not large


def test_no_file_that_a_program_left_behind() -> None:
    """A lock, or a directory that an address such as ``s3a://bucket`` became."""
    left = [name for path in tracked() if ":" in (name := str(path.relative_to(ROOT))) or path.suffix == ".lck"]
    assert not left, "tracked files were written by a test or a command"


def test_nothing_outside_the_tree_is_named() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in tracked()
        if b"\0" not in (data := path.read_bytes()) and (match := FOREIGN.search(data))
    ]
    assert not found, "tracked files hold paths of one machine"


@pytest.mark.xdist_group("of_one")
def test_groups_of_tests_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """What else pytest-xdist would pass over without a word: each process starts a Spark, and two builds collide."""
    assert request.node.nodeid.endswith("@of_one") or not request.config.getoption("loadgroup", False)


WITH_EXAMPLES = [path for path in sources() if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in WITH_EXAMPLES])
def test_the_examples_in_docstrings_are_true(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_compiled_codec_runs_where_it_can_be_built_unless_the_reference_is_requested(tmp_path: Path) -> None:
    ask = "import sej.codec; print(sej.codec.IMPLEMENTATION)"
    env = {"SEJ_CODEC": ""} if os.environ.get("SEJ_CODEC") else {}
    assert python(ask, tmp_path, **env).stdout.strip() == ("c" if has_compiler(tmp_path) else "python")
    assert python(ask, tmp_path, SEJ_CODEC="python").stdout.strip() == "python"
