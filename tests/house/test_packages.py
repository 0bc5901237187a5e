"""The house is complete: every package that the layers name is there, and nothing else ships."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.house.house import PACKAGES, ROOT


def test_settings_name_the_same_packages() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packaged = settings["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {name for name in packaged if "." not in name} == set(PACKAGES)
    assert set(settings["tool"]["importlinter"]["root_packages"]) == set(PACKAGES)
    for file, definition in (
        ("Makefile", "PACKAGES := "),
        ("setup.py", "PACKAGES = "),
        ("tools/setup_venv.py", "PACKAGES = "),
    ):
        line = next(line for line in (ROOT / file).read_text().splitlines() if line.startswith(definition))
        named = line.removeprefix(definition).translate(str.maketrans("", "", '(),"')).split()
        assert set(named) == set(PACKAGES), file


def modules_of(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}


def map_of(folder: Path) -> str:
    """The map at the beginning of a folder's ``__init__.py``; empty if it has none."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return text.partition("::")[2] if "best read" in text else ""


ROOMS = [path.parent for package in PACKAGES for path in (ROOT / package).glob("**/__init__.py")]
MAPPED = sorted(str(room.relative_to(ROOT)) for room in ROOMS if len(modules_of(room)) >= 12 or map_of(room))


@pytest.mark.parametrize("folder", MAPPED)
def test_the_map_of_a_folder_has_every_module(folder: str) -> None:
    room = ROOT / folder
    named = set(re.findall(r"\w+", map_of(room)))
    folders = {path.parent.name for path in room.glob("*/__init__.py")}
    assert modules_of(room) | folders <= named
