"""What ships: the wheel is built as `make wheel` does, installed into a clean environment, and looked at from there."""

import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import sej
from tests.house.conftest import PIP, build, unpacked
from tests.house.house import PACKAGES, ROOT, has_compiler, run

FOUND_BY_SPARK = {f"pyspark_sej{name}.py" for name in ("", "_kestrel", "_textqueue")}
"""Spark looks for top-level modules of these names."""
ASK = "import sej.codec; print(sej.codec.IMPLEMENTATION)"


def contents(wheel: Path) -> set[str]:
    """The names of the files in it."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def in_the_tree() -> set[str]:
    """Every file of the packages that is written by hand, as opposed to compiled or cached."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file())
    sources = (path for path in found if "__pycache__" not in path.parts and path.suffix not in (".so", ".c"))
    return {path.relative_to(ROOT).as_posix() for path in sources}


def test_wheel_and_sdist_have_every_file_of_the_packages(wheel: Path) -> None:
    tree = in_the_tree()
    assert "textqueue/editors/vim/syntax/textqueue.vim" in tree
    assert {name for name in tree if not name.endswith((".pyx", ".pxd"))} - contents(wheel) == set()
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tree |= {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "setup.py"}
    assert tree - names == set()


def test_wheel_installs_with_its_compiled_codec(wheel: Path, clean: Path, tmp_path: Path) -> None:
    names = contents(wheel)
    compiled = {name.partition(".")[0] for name in names if name.endswith(".so")}
    extensions = {name.removesuffix(".pyx") for name in in_the_tree() if name.endswith(".pyx")}
    assert compiled == (extensions if has_compiler(tmp_path) else set())
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    top = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert top == {*PACKAGES, *FOUND_BY_SPARK}, "the wheel carries more, or less, than the packages"
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".c"))]

    told = run([clean, "-W", "error", "-c", ASK], tmp_path)
    assert told.stdout.strip() == ("c" if compiled else "python"), told.stderr
    version = run([clean.parent / "sej", "--version"], tmp_path)
    assert version.returncode == 0, version.stderr
    assert f"sej {sej.__version__}," in version.stdout
    assert ("codec compiled" if compiled else "codec pure") in version.stdout.lower()


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode())
    assert (metadata["Name"], metadata["Version"]) == ("sej-journals", sej.__version__)
    assert (metadata["Author"], metadata["License-Expression"]) == ("The SEJ authors", "Apache-2.0")
    classifiers = metadata.get_all("Classifier") or []
    assert {"Typing :: Typed", *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13))} <= {
        *classifiers
    }
    # A library's upper bound keeps its users from an update, so it has a reason.
    text = (ROOT / "pyproject.toml").read_text().partition("dependencies = [")[2].partition("\ndemo = [")[0]
    blocks = text.split("]\n")
    bounded = [line for block in blocks if "#" not in block for line in block.splitlines() if "<" in line]
    assert not bounded, "pyproject.toml: each upper bound of a dependency needs its reason in a comment"


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import hub.wire", "hub"),
        ("import pipeline; pipeline.session()", "spark"),
        ("from pipeline import Lag", "spark"),
        ("import pipeline; pipeline.table('.')", "tables"),
    ],
)
def test_what_an_extra_brings_is_named_where_it_is_missing(clean: Path, tmp_path: Path, code: str, extra: str) -> None:
    told = run([clean, "-c", code], tmp_path)
    assert told.returncode == 1
    assert told.stderr.rstrip().endswith(f"pip install 'sej-journals[{extra}]'"), told.stderr


def test_without_a_compiler_the_wheel_is_pure_and_works(wheel: Path, clean: Path, tmp_path: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    built = build(tmp_path / "dist", unpacked(sdist, tmp_path / "source"), "wheel", CC="/bin/false")
    assert not [name for name in contents(built) if name.endswith(".so")]
    pure = tmp_path / "pure"
    done = run([*PIP, "install", "--no-compile", "--no-deps", "--target", pure, built], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = run([clean, "-W", "error", "-c", ASK], tmp_path, PYTHONPATH=str(pure))
    assert told.stdout.strip() == "python", told.stderr
    where = run([clean, "-c", "import sej; print(sej.__file__)"], tmp_path, PYTHONPATH=str(pure))
    assert where.stdout.startswith(str(pure)), where.stdout
