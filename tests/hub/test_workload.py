"""Random histories of queues whose journal is copied to a hub by the same processes, which may die at any call.

After each history: the copy is the beginning of the journal, and a last run of the copier makes it complete. Retention
has deleted nothing that the copy lacked.
"""

import random
from pathlib import Path

import pytest

import hub
import sej
from hub.wire import Copier
from tests.crash.harness import SHORT_S, seeded_random
from tests.hub.workload import CLIENT, Local
from tests.queue.test_workload import World, history


class CopiedWorld(World):
    """A journal, a hub, and the processes that use both."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        sej.Offset(self.path, "hub").close()

    def command(self, process: str) -> list[str]:
        return ["tests.hub.workload", str(self.path), process]


def copied(world: CopiedWorld, seconds: float, processes: int) -> None:
    found = history(world, seconds, processes)
    with hub.Store(f"{world.path}-hub") as store, Copier(world.path, Local(store)) as copier:
        before = store.end_offset(CLIENT, world.path.name)
        assert (sej.read_offset(world.path, "hub") or 0) <= before
        assert copier.run_once() == len(found) - before
        journal = sej.Journal(Path(f"{world.path}-hub", f"{CLIENT}.{world.path.name}"))
        assert journal.verify() == []
        with sej.Scanner(journal.path) as s:
            assert {message.offset: message.value.decode() for message in s} == found


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    copied(CopiedWorld(tmp_path, seeded_random()), max(torture_s, SHORT_S), 3 if torture_s < SHORT_S else 5)
