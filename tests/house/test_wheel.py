"""What ships: the wheel is built as `make wheel` does, installed into a clean environment, and looked at from there."""

import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.house.house import PACKAGES, ROOT, has_compiler, run

ASK = "import sej.codec; print(sej.codec.IMPLEMENTATION)"


def build(directory: Path, **env: str) -> Path:
    """Build sdist and wheel as `make wheel` does; returns the wheel."""
    command: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT]
    done = run(command, directory, **env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,) = directory.glob("*.whl")
    return wheel


def contents(wheel: Path) -> set[str]:
    """The names of the files in it."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds nothing but pip."""
    directory = tmp_path_factory.mktemp("clean")
    venv.create(directory, with_pip=True)
    return directory / "bin" / "python"


def install(python: Path, wheel: Path, *options: str) -> None:
    """Install as a user would, from a directory where the tree cannot be seen."""
    done = run([python, "-m", "pip", "-qq", "--no-input", "install", *options, wheel], wheel.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_installs_with_its_compiled_codec(clean: Path, tmp_path: Path) -> None:
    wheel = build(tmp_path)
    names = contents(wheel)
    compiled = {name for name in names if name.endswith(".so")}
    assert bool(compiled) == has_compiler(tmp_path)
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    top = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert top == set(PACKAGES), "the wheel carries more, or less, than the packages"
    assert not [name for name in names if name.endswith((".pyx", ".c"))]

    install(clean, wheel)
    told = run([clean, "-W", "error", "-c", ASK], tmp_path)
    assert told.stdout.strip() == ("c" if compiled else "python"), told.stderr
    version = run([clean.parent / "sej", "--version"], tmp_path)
    assert version.returncode == 0, version.stderr
    assert "0.1.0" in version.stdout
    assert ("codec compiled" if compiled else "codec pure") in version.stdout.lower()


def test_without_a_compiler_the_wheel_is_pure_and_works(clean: Path, tmp_path: Path) -> None:
    wheel = build(tmp_path, CC="/bin/false")
    assert not [name for name in contents(wheel) if name.endswith(".so")]
    install(clean, wheel, "--force-reinstall", "--no-deps")
    told = run([clean, "-W", "error", "-c", ASK], tmp_path)
    assert told.stdout.strip() == "python", told.stderr
