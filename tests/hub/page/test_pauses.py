"""Paused queues are looked at in turns, and a queue that did not change is not read again."""

from pathlib import Path
from typing import Any

import pytest

import sej
from hub.page import pauses
from hub.page.pauses import Pauses
from sej.queue.items.look import QueueLook


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    found = [str(tmp_path / name) for name in ("one", "two", "three")]
    for path in found:
        with sej.open_queue(path, "worker") as queue:
            queue.pause()
    return found


def test_a_round_is_limited_and_the_next_one_continues(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "_LOOK_S", -1.0)
    looked = Pauses()
    for done in range(1, 4):
        looked.look(paths)
        assert [looked.of(path) for path in paths] == [["worker"]] * done + [[]] * (3 - done)
    looked.look(paths[1:])
    assert [looked.of(path) for path in paths] == [[], ["worker"], ["worker"]]
    looked.look([])
    assert looked.of(paths[1]) == []


def test_only_a_queue_that_changed_is_read_again(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counting(path: str, name: str) -> Any:
        read.append(path)
        return QueueLook(path, name)

    monkeypatch.setattr(pauses, "QueueLook", counting)
    monkeypatch.setattr(pauses, "_LOOK_S", 3600.0)
    looked = Pauses()
    looked.look(paths)
    assert read == paths
    looked.look(paths)
    assert read == paths
    with sej.open_queue(paths[1], "worker") as queue:
        queue.resume()
    looked.look(paths)
    assert read == [*paths, paths[1]]
    assert [looked.of(path) for path in paths] == [["worker"], [], ["worker"]]


def test_one_that_cannot_be_read_keeps_what_was_known(paths: list[str]) -> None:
    looked = Pauses()
    looked.look(paths[:1])
    log = Path(paths[0], "ofs", "worker.queue")
    log.unlink()
    log.mkdir()
    looked.look(paths[:1])
    assert looked.of(paths[0]) == ["worker"]
