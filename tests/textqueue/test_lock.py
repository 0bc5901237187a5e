"""The lock between programs: how long a process pauses that finds it taken."""

import time
from pathlib import Path

import pytest

from sej.system.disk import OS
from textqueue.ledger.sidecar import Guard


def test_a_newcomer_tries_again_soon_and_then_more_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "jobs.tq")
    holder, newcomer = Guard(path, disk=OS), Guard(path, disk=OS)
    holder.__enter__()
    found: list[float] = []

    def sleep(seconds: float) -> None:
        found.append(seconds)
        if len(found) == 6:
            holder.__exit__()

    monkeypatch.setattr(time, "sleep", sleep)
    with newcomer:
        pass
    assert found == pytest.approx([0.000_05 * 2**n for n in range(6)])
