"""A short command is quick, because it loads what it uses."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import sej as library
import textqueue
from sej.cli.app import _CORE, _PACKAGES
from tests.cli.command import COMMAND, ENV, sej
from tests.cli.inside import inside

HEAVY = {
    *("rich", "pydantic", "importlib.metadata", "crc32c", "portalocker", "asyncio", "xxhash", "concurrent"),
    *("msgpack", "bson", "grpc", "google", "pyspark", "pyarrow", "numpy", "sortedcontainers", "subprocess", "ctypes"),
    *("shard", "hub", "pipeline", "kestrel", "pyarrow.compute", "pyarrow.parquet", "pandas", "polars"),
}
"""Modules that a short command does not need, and that would make it start later."""
OF_WRITERS = {"crc32c", "portalocker", "importlib.metadata"}
OF_WAITING = {"ctypes"}
OF_TEXT_QUEUES = {"subprocess"} | OF_WAITING
OF_PACKAGES = {"shard", "hub", "pipeline", "kestrel", "xxhash", "importlib.metadata", "concurrent"} | OF_TEXT_QUEUES
OF_SQL = OF_PACKAGES - {"kestrel"} | {"pyarrow", "numpy", "concurrent"}


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["tail", "J"], set()),
        (["tail", "--json", "J"], set()),
        (["count", "J"], OF_WAITING),
        (["scan", "J"], OF_WAITING),
        (["offset", "J"], set()),
        (["file", "J"], set()),
        (["stat", "J"], set()),
        (["append", "J"], OF_WRITERS),
        (["tq", "next", "Q"], OF_TEXT_QUEUES),
        (["sql", "SELECT value FROM j", "J"], OF_SQL),
        (["--help"], OF_PACKAGES),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_short_command_loads_nothing_heavy(words: list[str], allowed: set[str], tmp_path: Path) -> None:
    with library.Writer(tmp_path / "j") as writer:
        writer.append(b"x")
    with textqueue.TextQueue(tmp_path / "q.tq") as queue:
        queue.append("one")
    code = "import sys; from sej.cli import main; code = main(); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    words = [{"J": str(tmp_path / "j"), "Q": str(tmp_path / "q.tq")}.get(word, word) for word in words]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=ENV, capture_output=True, check=True, stdin=subprocess.DEVNULL
    )
    loaded = set(done.stderr.decode().split())
    assert loaded & HEAVY - allowed == set()


def test_a_contribution_that_cannot_be_loaded_does_not_affect_others(tmp_path: Path) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sej.commands]\nbroken = broken:app\nabsent = no_such_module:app\n")
    (tmp_path / "broken.py").write_text("raise RuntimeError('no licence')\n")
    env = {**ENV, "PYTHONPATH": f"{tmp_path}:{ENV['PYTHONPATH']}"}
    done = subprocess.run([*COMMAND, "--help"], env=env, capture_output=True, check=True)
    assert b"no licence" in done.stdout
    assert b"Work queues" in done.stdout
    done = subprocess.run([*COMMAND, "broken", "--x", "y"], env=env, capture_output=True, check=False)
    assert (done.returncode, done.stderr.count(b"\n"), b"no licence" in done.stderr) == (1, 1, True)
    done = subprocess.run([*COMMAND, "absent"], env=env, capture_output=True, check=False)
    assert (done.returncode, b"this needs no_such_module" in done.stderr) == (2, True)


def test_another_distribution_does_not_replace_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sej.commands]\ntq = json:loads\nmore = json:loads\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert {found.name for found in metadata.entry_points(group="sej.commands")} >= {"tq", "more"}
    done = inside(monkeypatch, "tq", "--help")
    assert (done.code, b"give-back" in done.out) == (0, True)


INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path, target):
        if name == sys.argv[1]:
            exec("os.kill(os.getpid(), signal.SIGINT)")  # as a dataclass would, which generates its methods

from sej.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupts())
sys.exit(main(sys.argv[2:]))
"""
"""The command, which gets SIGINT when it imports the module that is its first argument."""


@pytest.mark.parametrize(
    "words", [["click", "count"], ["sej.cli.reading", "count"], ["sej.cli.stat", "--help"]], ids=" ".join
)
def test_an_interrupt_of_an_import_is_130_and_no_traceback(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "interrupted", *words]
    done = subprocess.run(command, cwd=tmp_path, env=ENV, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_help_lists_each_command_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside(monkeypatch, "help", "queue", "put").out == inside(monkeypatch, "queue", "put", "--help").out
    listed = re.findall(r"^  ([a-z]+)  ", inside(monkeypatch, "--help").out.decode().partition("Messages:")[2], re.M)
    assert sorted(listed) == sorted([*_CORE, *_PACKAGES])


def test_help_without_docstrings_says_why_it_is_short() -> None:
    for words in (["--help"], ["queue", "put", "-h"]):
        command = [sys.executable, "-OO", "-m", "sej", *words]
        done = subprocess.run(command, env=ENV, capture_output=True, text=True, check=True)
        assert "`python -OO` removes the descriptions" in done.stderr
        assert not re.search(r"^  \w+ +\.$", done.stdout, re.MULTILINE)


def test_version_names_the_codec() -> None:
    done = sej("--version")
    assert done.returncode == 0
    assert f"codec {library.codec.IMPLEMENTATION}".encode() in done.stdout
    assert b"codec pure (python)" in sej("--version", env={"SEJ_CODEC": "python"}).stdout


@pytest.mark.parametrize(
    ("name", "words", "extra"),
    [
        ("msgpack", ["scan", "--format", "msgpack"], "formats"),
        ("bson", ["dump", "--format", "bson"], "formats"),
        ("pyspark", ["spark", "stats"], "spark"),
        ("grpc", ["hub", "serve"], "hub"),
    ],
)
def test_one_sentence_where_a_library_is_missing(tmp_path: Path, name: str, words: list[str], extra: str) -> None:
    library.Writer(tmp_path / "j").close()
    code = f"import sys; sys.modules[{name!r}] = None; from sej.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *words, str(tmp_path / "j")], env=ENV, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == f"sej: this needs {name}: pip install 'sej-journals[{extra}]'\n".encode()
