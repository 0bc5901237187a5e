"""What `make release-check` demands, as far as it needs no build: tests/house/test_wheel.py builds."""

import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import sej
from tests.house.house import ROOT, run
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
