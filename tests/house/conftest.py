"""The distribution as a stranger has it: the wheel, built once, and an environment that holds nothing else."""

import sys
import venv
from pathlib import Path

import pytest

from tests.house.house import ROOT, run

PIP = [sys.executable, "-m", "pip", "-qq", "--no-input", "--disable-pip-version-check"]


def build(directory: Path, source: Path = ROOT, **env: str) -> Path:
    """Build sdist and wheel as `make wheel` does; returns the wheel."""
    directory.mkdir(exist_ok=True)
    command: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, source]
    done = run(command, directory, **env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, compiled in a hurry: no test measures it."""
    return build(tmp_path_factory.mktemp("dist"), CFLAGS="-O0")


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment with the wheel, and what it says that it needs."""
    directory = tmp_path_factory.mktemp("clean")
    venv.create(directory)  # without a pip of its own: to make one takes longer than to use ours
    python = directory / "bin" / "python"
    # From a directory where the tree cannot be seen, as a user would.
    done = run([*PIP, "--python", python, "install", wheel], wheel.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return python
