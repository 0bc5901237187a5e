"""A short command is quick, because it loads what it uses."""

import subprocess
import sys
from pathlib import Path

import sej as library
from tests.cli.command import COMMAND, ENV


def test_tail_loads_nothing_heavy(tmp_path: Path) -> None:
    with library.Writer(tmp_path / "j") as writer:
        writer.append(b"x")
    code = "import sys; from sej.cli import main; code = main(); print(*sys.modules, file=sys.stderr); sys.exit(code)"
    done = subprocess.run(
        [sys.executable, "-c", code, "tail", str(tmp_path / "j")], env=ENV, capture_output=True, check=True
    )
    loaded = set(done.stderr.decode().split())
    assert not loaded & {"typer", "rich", "pydantic", "importlib.metadata", "crc32c", "portalocker", "asyncio", "shard"}


def test_errors_go_to_standard_error(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "count", str(tmp_path)], env=ENV, capture_output=True, check=False)
    assert done.stdout == b""
    assert done.stderr.startswith(b"sej: ")
    assert len(done.stderr.splitlines()) == 1
