"""What `make release-check` demands, as far as it needs no build: tests/house/test_wheel.py builds."""

import pytest

import sej
from tests.house.house import ROOT
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
