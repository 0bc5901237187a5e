"""Plain words: phrases that are not used again, in pages, docstrings and error texts, and the longest sentence.

A phrase is added to PHRASES with its replacement.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.house.house import PACKAGES, ROOT, sources

SENTENCE_WORDS: Final = 36
"""In a page or a text. Most sentences have at most 25; a list of names may have more."""
PHRASES: Final = {
    r"\b(is|are|was|were|be) due\b": "must be ..., got ...; expected ...",
    r"(?<![Tt]here )\b(is|are|was|were) (none\b|no (?!longer|more|need|use|room|point|other)\w)": "not a",
    r"\bwhere (it|they|there|that|this|one|none|nothing) (is|are|was|were|has|have|does|do|can|may)\b"
    r"|\bwhere (given|missing|needed|possible|known)\b": "if, for a condition",
    r"\bbehind (it|that|those|them|the (message|end|last|segment|journal|offset|damage))\b": "after",
    r"\b(anew|afresh)\b": "again, reopen, re-create",
    r"\b(stands?|stood)\b": "is stored, is, is next to",
    r"\bbesides?\b": "next to, in addition to",
    r"\b(goes|went|go|going) on\b|\b(comes?|came) back\b": "continues, is delivered again",
    r"\b(nobody|somebody|someone|whoever|anybody|everybody|he|his|himself)\b": "name the actor",
    r"(?<!many )\bat once\b": "concurrently, immediately",
    r"\btrees? of shards\b|\bherds?\b": "sharded journal",
    r"\btold\b|\basked for\b|\bsa(id|ys) (of|in full)\b|\bsay(s|ing)? so\b": "documented, reported, requested",
    r"\b([Gg]raves?|buried|buries|bury|[Ee]nders?|doomed|resting)\b": "dead letters, ack, exhausted, idle",
    r"\bfor ever\b|\bin vain\b|\bthereof\b|\bthereby\b|\bwherein\b|\bby now\b": "without a limit, already",
    r"\blets? go of\b|\bhand(s|ed)? (out|on)\b|\bgiven out\b|\btaken apart\b": "release, return, decode",
}


def problems(text: str) -> Iterator[str]:
    flat = " ".join(text.split())
    for pattern, instead in PHRASES.items():
        if found := re.search(pattern, flat):
            yield f"{found[0]!r}: write {instead}"


def prose(page: str) -> str:
    """Return a page without code and links."""
    page = re.sub(r"^ *```.*?^ *```", "", page, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"\]\([^)]*\)|<[^>]*>", "", re.sub(r"`[^`]*`", "x", page))


def sentences(page: str) -> list[str]:
    """Return each sentence, item of a list and cell of a table."""
    blocks = re.split(r"\n(?=\s*(?:[-|:#]|\d+\. |$))", prose(page), flags=re.MULTILINE)
    return [part for block in blocks for part in re.split(r"[|]|(?<=[.!?:])\**\s", block)]


PAGES: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("[!_]*.md"), *(ROOT / "docs").glob("[!_]*/**/*.md")])


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_pages_have_plain_words(page: Path) -> None:
    parts = sentences(page.read_text())
    found = [f"{problem}: {part}" for part in parts for problem in problems(part)]
    found += [f"too long: {part}" for part in parts if len(part.split()) > SENTENCE_WORDS]
    assert not found


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_errors_have_plain_words(package: str) -> None:
    found = []
    for path in (path for path in sources() if path.is_relative_to(ROOT / package)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                found += [f"{path.relative_to(ROOT)}:{node.lineno}: {problem}" for problem in problems(node.value)]
    assert not found


def test_the_check_can_fail() -> None:
    assert list(problems("A size\nis due here.")) and not list(problems("There is no limit."))
    assert max(len(part.split()) for part in sentences("# Size\n\n- " + "word " * 37)) > SENTENCE_WORDS
