"""The parser and a queue read the golden files as their manifests describe."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.textqueue.claiming import plain
from textqueue import MessageStatus, TextQueue
from textqueue.format.parser import Entry, decode, parse

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
