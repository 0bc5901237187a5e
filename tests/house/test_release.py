"""What ships: what `make release-check` demands, the workflows, and the wheel, built as `make wheel` does.

The wheel is installed into a clean environment, and looked at from there.
"""

import re
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import sej
from tests.house.conftest import PIP, build, unpacked
from tests.house.house import PACKAGES, ROOT, has_compiler, run
from tools.release_check import NotReadyError, citation, entry_of

DATED = "# Changelog\n\nText.\n\n## 1.2.0, 2026-01-31\n\nFixes.\n\n## 1.1.0, 2025-01-31\n\nThe first.\n"
OPEN = DATED.replace("2026-01-31", "unreleased")


def test_the_changelog_and_the_citation_are_of_this_version() -> None:
    assert entry_of((ROOT / "CHANGELOG.md").read_text(), sej.__version__, []).startswith(f"## {sej.__version__}, ")
    assert citation() == sej.__version__


def test_an_entry_is_found_with_its_date_or_without_before_the_release() -> None:
    assert entry_of(DATED, "1.2.0", []) == entry_of(DATED, "1.2.0", ["v1.2.0"]) == "## 1.2.0, 2026-01-31"
    assert entry_of(OPEN, "1.2.0", []) == "## 1.2.0, unreleased"


@pytest.mark.parametrize(
    ("text", "version", "tags", "reason"),
    [
        (DATED, "1.3.0", [], "expected an entry for 1.3.0 as the newest, got 1.2.0"),
        (DATED, "1.1.0", [], "expected an entry for 1.1.0 as the newest, got 1.2.0"),
        ("# Changelog\n", "1.2.0", [], "got none"),
        ("## 1.2.0, 2026-01-31\n\n## 1.1.0, 2025-01-31\n\nText.\n", "1.2.0", [], "got 1.1.0"),
        (DATED.replace("2026-01-31", "soon"), "1.2.0", [], "expected a date"),
        (OPEN, "1.2.0", ["v1.2.0"], "has the tag v1.2.0 but no date"),
        (DATED, "1.2.0", ["v1.1.0"], "the commit has the tag v1.1.0"),
    ],
)
def test_a_wrong_entry_is_refused(text: str, version: str, tags: list[str], reason: str) -> None:
    with pytest.raises(NotReadyError, match=reason):
        entry_of(text, version, tags)


SCAN = "import pipeline; assert pipeline.table('j').{}"
COMMAND = "from sej.cli import main; assert main({!r}) == 0"
USES = {
    "deltalake": COMMAND.format(["ship", "j", "delta:out"]),
    "formats": ";".join(COMMAND.format(["scan", "--format", form, "j"]) for form in ("bson", "msgpack")),
    "hub": "import hub.cli, hub.wire.server",
    "lsp": "import pygls",
    "pandas": SCAN.format("to_pandas()['value'][0] == b'v'"),
    "polars": "import pipeline, polars; pipeline.table('j').to_polars(); pipeline.table('j').scan().filter("
    "polars.col('value').map_elements(len, return_dtype=polars.Int64) == 1).collect()",
    "sql": COMMAND.format(["sql", "SELECT count(*) FROM j", "j"]),
    "tables": SCAN.format("to_arrow().num_rows == 1"),
    "ui": "import hub.page.serving",
}
ONLY = """
import sys
from importlib import metadata
allowed = set(sys.argv[1].split())
owners = metadata.packages_distributions()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if path is None and name in owners and not allowed & {each.lower().replace("_", "-") for each in owners[name]}:
            raise ModuleNotFoundError(f"No module named {name!r}: no part of the extra", name=name)
sys.meta_path.insert(0, Finder())
"""


def needed(name: str, extras: set[str], found: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the distributions that an installation brings, each with its extras."""
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if requirement.marker and not any(requirement.marker.evaluate({"extra": each}) for each in {"", *extras}):
            continue
        for extra in {"", *requirement.extras}:
            part = (requirement.name.lower().replace("_", "-"), extra)
            if part not in found:
                found.add(part)
                needed(requirement.name, {extra}, found)
    return found


@pytest.mark.parametrize("extra", USES)
def test_an_extra_brings_what_its_calls_need(extra: str, tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j") as writer:
        writer.append(b"v")
    brings = {name for name, _ in needed("sej-journals", {extra}, set())} | {"sej-journals"}
    done = run([sys.executable, "-c", ONLY + USES[extra], " ".join(brings)], tmp_path)
    assert done.returncode == 0, done.stderr


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_there_is_one_for_each_task() -> None:
    assert {path.stem for path in WORKFLOWS} == {"codeql", "docs", "release", "test", "wheels"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_commit_and_targets_exist(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}: which version is it?"
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= TARGETS
    assert "permissions: {}" in text, "each job asks for what it needs"


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
