"""The distribution as a stranger has it: the wheel, built once, and an environment that holds nothing else."""

import shutil
import sys
import venv
from pathlib import Path
from typing import Literal

import pytest

from tests.house.house import PACKAGES, ROOT, run

PIP = [sys.executable, "-m", "pip", "-qq", "--no-input", "--disable-pip-version-check"]


def copied(directory: Path) -> Path:
    """Copy what a build reads; return the copy. A build in the tree has an unfinished egg-info there for a moment.

    A program that starts in the tree at this moment would look for its commands in it.
    """
    copy = directory / "source"
    copy.mkdir()
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*_c.c"))
    return copy


def build(directory: Path, source: Path, *only: Literal["sdist", "wheel"], **env: str) -> Path:
    """Build sdist and wheel as `make wheel` does, or only one of them; returns the wheel if it was built."""
    directory.mkdir(exist_ok=True)
    command: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir", directory]
    command += [*(f"--{kind}" for kind in only), source]
    done = run(command, directory, **env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (built,) = directory.glob("*.tar.gz" if only == ("sdist",) else "*.whl")
    return built


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, compiled in a hurry: no test measures it."""
    directory = tmp_path_factory.mktemp("wheel")
    return build(directory / "dist", copied(directory), CFLAGS="-O0")


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The interpreter of an environment with the wheel, and what it says that it needs."""
    directory = tmp_path_factory.mktemp("clean")
    venv.create(directory)  # without a pip of its own: to make one takes longer than to use ours
    python = directory / "bin" / "python"
    # From a directory where the tree cannot be seen, as a user would. What is imported is compiled then.
    done = run([*PIP, "--python", python, "install", "--no-compile", wheel], wheel.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return python
