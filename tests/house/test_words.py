"""Plain words: phrases that are not used again, the longest sentence of an error, and distinct names of modules.

README, CHANGELOG, CONTRIBUTING and docs have none of the phrases, and no very long sentence. The docstrings, comments
and error texts of all code have none of the phrases. A phrase is added to PHRASES with its replacement.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.house.house import PACKAGES, ROOT, tracked

CODE: Final = [path for path in tracked() if path.suffix == ".py" and "_pb2" not in path.name]
SENTENCE_WORDS: Final = 25

PHRASES: Final = {
    "due": (r"\b(is|are|was|were|be) due\b", "must be ..., got ...; expected ..."),
    "is no": (
        r"(?<!there )(?<!There )\b(is|are|was|were) (none\b|no (?!longer|more|need|use|room|point|other)\w)",
        "not a",
    ),
    "where": (
        r"\bwhere (it|they|there|that|this|one|none|nothing) (is|are|was|were|has|have|does|do|can|may)\b"
        r"|\bwhere (given|missing|needed|possible|known)\b",
        "if, for a condition",
    ),
    "behind": (r"\bbehind (it|that|those|them|the (message|end|last|segment|journal|offset|damage))\b", "after"),
    "anew": (r"\b(anew|afresh)\b", "again, reopen, re-create"),
    "stands": (r"\b(stands?|stood)\b", "is stored, is, is next to"),
    "beside": (r"\bbesides?\b", "next to, in addition to"),
    "goes on": (r"\b(goes|went|go|going) on\b|\b(comes?|came) back\b", "continues, is delivered again"),
    "people": (r"\b(nobody|somebody|someone|whoever|anybody|everybody|he|his|himself)\b", "name the actor"),
    "at once": (r"(?<!many )\bat once\b", "concurrently, immediately"),
    "face": (r"\b(its|the|asyncio|same|queue) faces?\b", "interface, API"),
    "tree of shards": (r"\btrees? of shards\b|\bherds?\b", "sharded journal"),
    "told": (
        r"\btold\b|\basked for\b|\bsa(id|ys) (of|in full)\b|\bsay(s|ing)? so\b",
        "documented, reported, requested",
    ),
    "of which": (r"\bof which\b|\bsuch as (were|are|was)\b", "two sentences"),
    "private": (r"\b([Gg]raves?|buried|buries|bury|[Ee]nders?|doomed|resting)\b", "dead letters, ack, exhausted, idle"),
    "for ever": (
        r"\bfor ever\b|\bin vain\b|\bthereof\b|\bthereby\b|\bwherein\b|\bby now\b",
        "without a limit, already",
    ),
    "let go": (r"\blets? go of\b|\bhand(s|ed)? (out|on)\b|\bgiven out\b|\btaken apart\b", "release, return, decode"),
}
_RULES: Final = {name: re.compile(pattern) for name, (pattern, _) in PHRASES.items()}
_TOOLS: Final = re.compile(r"#\s*(type:|noqa|fmt:|pragma)")


class Text(NamedTuple):
    """A docstring, a comment or the text of an error."""

    kind: str
    line: int
    text: str


def _literal(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "value" for part in node.values]
        return "".join(map(str, parts))
    return None


def statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and those in them, without what they compute."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, name, ()))


def texts(source: str) -> Iterator[Text]:
    """Yield every docstring and error text of a module, and every comment that may have a phrase."""
    for node in statements(ast.parse(source).body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text("docstring", node.lineno, node.value.value)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            nested = {id(part) for found in ast.walk(node.exc) if isinstance(found, ast.JoinedStr)
                      for part in ast.walk(found) if part is not found}  # fmt: skip
            for found in ast.walk(node.exc):
                text = None if id(found) in nested else _literal(found)
                if text is not None and " " in text.strip():
                    yield Text("error", node.lineno, text)
    # The tokens of a module take longer than all else, so first: what is after a # in a line, be it in a string or not.
    after = " ".join(" ".join(line.partition("#")[1:]) for line in source.splitlines())
    if not any(rule.search(" ".join(after.split())) for rule in _RULES.values()):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not _TOOLS.match(token.string):
            yield Text("comment", token.start[0], token.string)


def problems(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and problem of each phrase of PHRASES, and of each sentence of an error that is too long."""
    for kind, line, text in texts(source):
        flat = " ".join(text.split())
        for name, rule in _RULES.items():
            found = rule.search(flat)
            if found:
                yield line, f"{kind}: {found[0]!r}: {PHRASES[name][1]}"
        if kind == "error":
            for sentence in re.split(r"[.;:?] ", flat):
                if len(sentence.split()) > SENTENCE_WORDS:
                    yield line, f"error: a sentence of {len(sentence.split())} words: {sentence!r}"


@pytest.mark.parametrize("place", sorted({path.relative_to(ROOT).parts[0] for path in CODE}))
def test_no_phrase_that_has_a_replacement(place: str) -> None:
    """Each problem is named with file, line and what to write instead."""
    files = [path for path in CODE if path.is_relative_to(ROOT / place)]
    found = [f"{file.relative_to(ROOT)}:{line}: {what}" for file in files for line, what in problems(file.read_text())]
    assert not found, "\n" + "\n".join(found)


PAGES: Final = sorted(
    [
        *ROOT.glob("*.md"),
        ROOT / "examples" / "README.md",
        *(ROOT / "docs").glob("[!_]*.md"),
        *(ROOT / "docs").glob("[!_]*/**/*.md"),
    ]
)
LONGEST_WORDS: Final = 36
"""In a page. Most sentences have at most 25; a list of names may have more."""


def prose(page: str) -> str:
    """Return a page without code and links, with its line ends."""
    page = re.sub(r"^ *```.*?^ *```", lambda code: "\n" * code[0].count("\n"), page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"`[^`]*`", lambda code: "x" + "\n" * code[0].count("\n"), page)
    return re.sub(r"\]\([^)]*\)|<[^>]*>", lambda link: "\n" * link[0].count("\n"), page)


def sentences(page: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each sentence, each item of a list and each cell of a table."""
    blocks = re.split(r"(\n(?=\s*(?:[-|:#]|\d+\. |$)))", prose(page), flags=re.MULTILINE)
    line = 1
    for block in blocks:
        for part in re.split(r"[|]|(?<=[.!?:])\**\s", block):
            yield line, " ".join(part.split())
        line += block.count("\n")


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_pages_have_plain_words(page: Path) -> None:
    found = []
    for line, sentence in sentences(page.read_text()):
        found += [f"{line}: {rule.search(sentence)!r}" for rule in _RULES.values() if rule.search(sentence)]
        if len(sentence.split()) > LONGEST_WORDS:
            found.append(f"{line}: a sentence of {len(sentence.split())} words: {sentence}")
    assert not found, "\n" + "\n".join(found)


def test_the_check_of_pages_can_fail() -> None:
    page = "# Size\n\nA size, in `due`,\nis due here.\n\n- " + "word " * 37 + "\n"
    wrong = [text for _, text in sentences(page) if _RULES["due"].search(text) or len(text.split()) > LONGEST_WORDS]
    assert len(wrong) == 2


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""A size is due."""', 1),
        ("x = 1\n# Opened anew.", 2),
        ('def f(n):\n    raise ValueError(\n        f"{n} is no size")', 2),
        ('def f(n):\n    raise ValueError("' + "word " * 26 + '")', 2),
        ('def f():\n    """Keep it for ever."""', 2),
    ],
)
def test_the_check_can_fail(source: str, line: int) -> None:
    assert [found for found, _ in problems(source)] == [line]


def _folders() -> Iterator[Path]:
    for package in PACKAGES:
        yield ROOT / package
        yield from sorted(path.parent for path in (ROOT / package).rglob("*/__init__.py"))


def test_names_of_modules_differ_by_more_than_an_ending() -> None:
    alike = []
    for folder in _folders():
        names = sorted({path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")})
        for one, other in combinations(names, 2):
            if re.sub(_ENDING, "", one) == re.sub(_ENDING, "", other):
                alike.append(f"{folder.relative_to(ROOT)}: {one}, {other}")
    assert not alike, alike


_ENDING: Final = re.compile(r"(ing|ed|er|ers|s|e)$")
