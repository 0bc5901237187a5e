"""sej verify: what is wrong, where, and the exit code; and that no reading command ends in a traceback."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sej as library
from tests.cli.command import ROOT, sej
from tests.cli.inside import inside
from tests.sej.support import flip, overwrite

GOLDEN = ROOT / "tests" / "golden" / "sej"
SOUND = [
    *("basic", "all-types", "multi-segment", "multi-segment-empty-tail", "multi-segment-exact", "reopened"),
    *("first-deleted", "empty", "offsets", "only-empty-high", "torn-cut-all"),
]
CASES = sorted(path.name for path in GOLDEN.iterdir() if (path / "dir" / "jnl").is_dir())


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    with library.Writer(path, segment_bytes=100_000) as writer:
        for number in range(4):
            writer.append_many([b"value %d" % number * 30] * 600, timestamp=number)
    return path


def first(journal: Path) -> Path:
    return min((journal / "jnl").iterdir())


def last(journal: Path) -> Path:
    return max((journal / "jnl").iterdir())


def flip_value(journal: Path) -> tuple[Path, str]:
    flip(first(journal), 5000)
    return first(journal), "checksum"


def break_frame(journal: Path) -> tuple[Path, str]:
    overwrite(first(journal), 0, b"\xff" * 8)
    return first(journal), "corruption"


def remove_middle(journal: Path) -> tuple[Path, str]:
    sorted((journal / "jnl").iterdir())[1].unlink()
    return first(journal), "gap"


def tear(journal: Path) -> tuple[Path, str]:
    last(journal).write_bytes(last(journal).read_bytes()[:-3])
    return last(journal), "torn tail"


@pytest.mark.parametrize("damage", [flip_value, break_frame, remove_middle, tear])
def test_damage_is_named_by_file_and_position(journal: Path, damage: Callable[[Path], tuple[Path, str]]) -> None:
    assert len(list((journal / "jnl").iterdir())) >= 3
    path, kind = damage(journal)
    before = {entry: entry.read_bytes() for entry in (journal / "jnl").iterdir()}
    done = sej("verify", journal)
    assert done.returncode == 1
    line = done.stdout.decode().splitlines()[0]
    assert str(path) in line
    assert "position" in line
    assert kind in line
    row = json.loads(sej("verify", "--json", journal).stdout.splitlines()[0])
    assert (row["kind"], row["path"]) == (kind, str(path))
    assert isinstance(row["position"], int)
    assert before == {entry: entry.read_bytes() for entry in (journal / "jnl").iterdir()}


def test_a_tail_in_flight_is_not_damage(journal: Path) -> None:
    with library.Writer(journal):
        with last(journal).open("ab") as file:
            file.write(b"\0" * 5)
        assert sej("verify", journal).returncode == 0
        assert b"ok       torn tail: " in sej("doctor", journal).stdout
    assert sej("verify", journal).returncode == 1


@pytest.mark.parametrize("case", CASES)
def test_no_case_ends_in_a_traceback(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(GOLDEN / case / "dir", tmp_path / "j")
    expected = json.loads((GOLDEN / case / "expected.json").read_text())
    verified = inside(monkeypatch, "verify", tmp_path / "j")
    assert (verified.code, verified.err) == (0 if case in SOUND else 1, ""), verified.out
    counted = inside(monkeypatch, "count", tmp_path / "j")
    if counted.code == 0:
        assert int(counted.out.splitlines()[-1]) == len(expected["messages"])
    else:
        assert counted.code == 1
        assert "position" in counted.err
    for command in ("scan", "tail", "doctor", "stat"):
        done = inside(monkeypatch, command, "--json", tmp_path / "j")
        assert done.code in (0, 1)
        assert "Warning" not in done.err
