"""Random histories of queues whose journal is copied to a hub by whoever of their processes comes to it, and dies.

Whatever happened to the queues, and to the hub's own writer: the copy is a beginning of the journal, and becomes all of
it; and nothing that it does not have was taken by retention.
"""

import random
from pathlib import Path

import pytest

import hub
import sej
from hub.wire import Copier
from tests.crash.herd import chance
from tests.hub.crowd import CLIENT, Local
from tests.queue.test_crowd import World, history


class CopiedWorld(World):
    """A journal and a hub, and the processes at both."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        sej.Offset(self.path, "hub").close()

    def words(self, who: str) -> list[str]:
        return ["tests.hub.crowd", str(self.path), who]


def copied(world: CopiedWorld, seconds: float, processes: int) -> None:
    stands = history(world, seconds, processes)
    with hub.Store(f"{world.path}-hub") as store, Copier(world.path, Local(store)) as copier:
        before = store.end_offset(CLIENT, world.path.name)
        assert (sej.read_offset(world.path, "hub") or 0) <= before
        assert copier.run_once() == len(stands) - before
        journal = sej.Journal(Path(f"{world.path}-hub", f"{CLIENT}.{world.path.name}"))
        assert journal.verify() == []
        with sej.Scanner(journal.path) as s:
            assert {message.offset: message.value.decode() for message in s} == stands


def test_a_random_history(tmp_path: Path) -> None:
    copied(CopiedWorld(tmp_path, chance()), 2.0, 3)


@pytest.mark.torture
def test_a_long_random_history(tmp_path: Path, torture_s: float) -> None:
    copied(CopiedWorld(tmp_path, chance()), torture_s, 5)
