"""Random histories: edges that are killed, queues that are copied by processes that may die, messages of any size."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hub
import sej
from benchmarks.growth import exponent
from benchmarks.simulation import MESSAGES, WAKES, simulate
from hub.wire import Client, Copier
from hub.wire.copier import DirectoryFeed, Progress, Run
from sej.writing.shared_writer import SharedWriter
from tests.crash.disk import CrashDisk
from tests.crash.harness import SHORT_S, seeded_random
from tests.hub.support import fill, serving
from tests.hub.transport import Transport
from tests.hub.workload import CLIENT, Local
from tests.queue.test_workload import World, history
from tests.sej.support import sample
from tests.sej.windows import BLOCK_BYTES, READ_BYTES, shrunk, small_windows


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


# --- a week of 20 edges: killed, offline, with full disks; ``python -m benchmarks simulation`` runs 2,000


@pytest.mark.either_codec
def test_a_hub_has_every_message_of_its_edges_once(tmp_path: Path) -> None:
    found = simulate(tmp_path, 20, kills=4, hub_kills=2)
    assert found["messages"] == 20 * WAKES * MESSAGES
    assert (found["missing"], found["wrong"]) == (0, 0)
    assert (found["killed"], found["hub killed"]) == (4, 2)
    assert found["disk full"] and found["offline"]


def test_the_exponent_of_a_growth_is_that_of_its_larger_half() -> None:
    square = {10**n: 1.0 + 1e-6 * 10 ** (2 * n) for n in range(7)}
    assert 1.9 < exponent(square) < 2.1
    assert exponent(dict.fromkeys(square, 3.0)) == pytest.approx(0.0)


# --- messages larger than every window and chunk among short ones, from the copier to the merge


WINDOWS = {
    "hub.wire.copier": ["_CHUNK_BYTES", "_COMMIT_BYTES"],
    "hub.merge": ["_LEAST_CHUNK_BYTES", "CHUNK_BYTES"],
}
LEAST = 200
"""No window is smaller than the head of a message."""


def append(path: str, rows: list[sej.Message], dice: random.Random, disk: CrashDisk) -> None:
    kind: Any = dice.choice([sej.Writer, SharedWriter])
    with kind(path, segment_bytes=dice.choice([3000, 1 << 30]), disk=disk) as w:
        for _ in range(dice.randrange(1, 30)):
            large = dice.choice([200, BLOCK_BYTES - 30, BLOCK_BYTES, READ_BYTES, dice.randrange(20 * READ_BYTES)])
            value = bytes([len(rows) % 256]) * (large if dice.random() < 0.3 else dice.randrange(30))
            rows.append(sej.Message(len(rows), dice.randrange(1000), 0, b"key", value))
            assert w.append(value, b"key", timestamp=rows[-1].timestamp) == rows[-1].offset


@pytest.mark.parametrize("seed", range(12))
def test_the_hub_has_every_message_of_any_size(seed: int) -> None:
    dice = random.Random(seed)
    disk = CrashDisk()
    with small_windows(), shrunk(WINDOWS, least=LEAST):
        rows: dict[str, list[sej.Message]] = {"a": [], "b": []}
        feeds = {name: DirectoryFeed(f"/l/{name}", name, "hub", disk) for name in rows}
        with hub.Store("/hub", segment_bytes=dice.choice([3000, 1 << 30]), disk=disk) as store:
            transport = Transport(store, "c", dice, dice.choice([0.0, 0.1]))
            for name in "ab" * 3:
                append(f"/l/{name}", rows[name], dice, disk)
                feed = feeds[name]
                while feed.acknowledged != len(rows[name]):
                    try:
                        feed.copy(transport, Run(Progress(0, 0, 0, {}), None))
                    except hub.UnavailableError:
                        continue
                assert store.end_offset("c", name) == len(rows[name])
                at = dice.randrange(len(rows[name]))
                found: list[sej.Message] = []
                while at + len(found) < len(rows[name]):
                    found += store.get("c", name, at + len(found), 5, max_bytes=dice.choice([1, 3000, None]))
                assert found == rows[name][at:]
        for name, feed in feeds.items():
            feed.close()
            assert sej.Journal(f"/hub/c.{name}", disk=disk).verify() == []
        merged: dict[str, list[sej.Message]] = {"a": [], "b": []}
        memory_bytes, max_open = dice.choice([1, 5000, 1 << 20]), dice.choice([1, 100])
        with hub.Merge("/hub", "r", memory_bytes=memory_bytes, max_open=max_open, disk=disk) as merge:
            for source, message in merge:
                merged[source.journal_dir].append(message)
        assert merged == rows


def test_no_reply_is_larger_than_the_limit_but_for_one_message(tmp_path: Path) -> None:
    limit = 300_000
    fill(tmp_path / "hub" / "c.j", sample(9000, size=100))
    with (
        serving(tmp_path / "hub", max_message_bytes=limit) as (store, server),
        Client(server.address, client_id="c", max_message_bytes=limit) as client,
    ):
        data = b"".join(bytes(chunk) for chunk in client.read_encoded("j", 0))
        assert len(data) > 2 * limit
        assert store.put_encoded("c", "copy", data) == 9000
