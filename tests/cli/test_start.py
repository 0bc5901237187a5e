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


def test_completion_in_a_shell(tmp_path: Path) -> None:
    """What bash would be offered, asked as click's own script asks."""

    def offered(words: str, at: int) -> set[bytes]:
        env = {**ENV, "_SEJ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        script = Path(sys.executable).parent / "sej"
        done = subprocess.run([script], env=env, cwd=tmp_path, capture_output=True, check=True)
        return {line.partition(b",")[2] for line in done.stdout.splitlines()}

    assert {b"repair", b"reset"} <= offered("sej re", 1)
    assert {b"claim", b"check"} <= offered("sej tq c", 2)
    assert {b"--dry-run"} <= offered("sej repair --d", 2)
