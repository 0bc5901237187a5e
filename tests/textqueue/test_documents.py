"""The page about the format and the syntax files agree with the grammar table."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.textqueue.claiming import plain
from textqueue import MessageStatus, TextQueue
from textqueue.format.mutex import ROOM
from textqueue.format.parser import CONTROLS, LINE, Entry, decode, parse
from textqueue.lsp import VARIABLES

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "formats" / "textqueue.md").read_text("utf-8")
EDITORS = ROOT / "textqueue" / "editors"


def test_the_table_of_the_page_equals_the_grammar() -> None:
    rows = re.findall(r"^\| `(.)` \| (\w+) \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE)
    assert rows == [(chr(c.byte), c.name, c.role.name, c.meaning) for c in CONTROLS]


def test_the_expression_of_the_page_equals_the_grammar() -> None:
    assert r"[-=# !\\][^\n]*(?:\n|<EOF>)|\n" in PAGE
    document = re.compile(rb"[-=# !\\][^\n]*(?:\n|\Z)|\n")
    for byte in range(256):
        for line in (bytes([byte]), bytes([byte]) + b"x\n"):
            assert bool(document.fullmatch(line)) == bool(LINE.fullmatch(line))


def test_the_dump_of_the_page_parses_as_described() -> None:
    dump = re.findall(r"^[0-9a-f]{8}  ([0-9a-f ]+?)  \|", PAGE, re.MULTILINE)
    data = bytes.fromhex("".join(dump))
    entries = [part for part in parse(data) if isinstance(part, Entry)]
    assert [(e.position, e.status.name, e.value, e.variables) for e in entries] == [
        (0, "comment", b" jobs", ()),
        (7, "queued", b"ship 17\nto Bern", (b"retries=3 ",)),
        (37, "cleared", b"ship 16", ()),
    ]
    positions = re.findall(r"^\| (\d+) \| `(.)([^`]*)`", PAGE, re.MULTILINE)
    for position, control, text in positions:
        assert data[int(position) :].startswith((control + text).encode())
    assert len(positions) == 4


def test_the_page_names_the_variables() -> None:
    for name in VARIABLES:
        assert f"- `{name}`:" in PAGE
    assert f"{ROOM} bytes after" in PAGE


def test_statuses_are_the_published_packages() -> None:
    assert [(status.name, status.value) for status in MessageStatus] == [
        ("cleared", 1),
        ("queued", 2),
        ("comment", 3),
        ("critical", 4),
    ]


def vim() -> dict[str, str]:
    text = (EDITORS / "vim" / "syntax" / "textqueue.vim").read_text()
    found = dict(re.findall(r"^syntax match tq(\w+)\s+/(.*)/$", text, re.MULTILINE))
    linked = set(re.findall(r"^highlight default link tq(\w+) ", text, re.MULTILINE))
    assert linked == set(found)
    return {name.lower(): pattern for name, pattern in found.items()}


def vscode() -> dict[str, str]:
    grammar = json.loads((EDITORS / "vscode" / "syntaxes" / "textqueue.tmLanguage.json").read_text())
    return {pattern["name"].split(".")[-2]: pattern["match"] for pattern in grammar["patterns"]}


def nano() -> dict[str, str]:
    text = (EDITORS / "nano" / "tq.nanorc").read_text()
    return dict(re.findall(r'^# (\w+)\ncolor \S+ "(.*)"$', text, re.MULTILINE))


@pytest.mark.parametrize("patterns", [vim, vscode, nano])
def test_a_syntax_file_has_every_control_character_and_no_other(patterns: type) -> None:
    found: dict[str, str] = patterns()
    assert set(found) == {control.name for control in CONTROLS} | {"unknown"}
    for control in CONTROLS:
        for other in CONTROLS:
            line = chr(other.byte) + "text"
            assert bool(re.match(found[control.name], line)) == (other == control)
    assert re.match(found["unknown"], "T2024")


def test_vscode_marks_the_bytes_that_the_table_lacks_as_unknown() -> None:
    for byte in range(32, 127):
        known = any(control.byte == byte for control in CONTROLS)
        assert bool(re.match(vscode()["unknown"], chr(byte) + "x")) != known


# --- The parser and a queue read the golden files as their manifests describe


GOLDEN = Path(__file__).parent.parent / "golden" / "textqueue"
CASES = sorted(path.stem for path in GOLDEN.glob("*.tq"))


def manifest(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{case}.json").read_text("utf-8"))
    return found


def test_there_are_golden_files() -> None:
    assert len(CASES) > 15


@pytest.mark.parametrize("case", CASES)
def test_the_parser_loses_no_byte_of_a_golden_file(case: str) -> None:
    data = (GOLDEN / f"{case}.tq").read_bytes()
    expected = manifest(case)
    assert len(data) == expected["size"]
    found = list(parse(data))
    entries = [
        {
            "status": entry.status.name,
            "position": entry.position,
            "value": decode(entry.value),
            "variables": [decode(variable) for variable in entry.variables],
        }
        for entry in found
        if isinstance(entry, Entry)
    ]
    assert entries == expected["entries"]
    assert b"".join(part.raw for part in found) == data


@pytest.mark.parametrize("case", CASES)
def test_a_queue_reads_golden_files_without_changing_them(case: str, tmp_path: Path) -> None:
    path = tmp_path / "copy.tq"
    shutil.copyfile(GOLDEN / f"{case}.tq", path)
    expected = manifest(case)["entries"]
    with TextQueue(path, settle_s=0) as q:
        found = [(m.status.name, m.position, m.value, list(m.get_variables())) for m in q.messages(set(MessageStatus))]
        given = []
        while (message := q.get_next()) is not None:
            given.append(message.value)
    assert found == [(e["status"], e["position"], e["value"], e["variables"]) for e in expected]
    assert given == [e["value"] for e in expected if e["status"] == "queued"]
    assert plain(path) == plain(GOLDEN / f"{case}.tq")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.tq"]
