"""Every later version reads, and continues, the files of each release: docs/policies.md promises it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import sej
import shard
import textqueue
from tests.queue.support import FakeClock

RELEASES = sorted(path for path in (Path(__file__).parent / "releases").iterdir() if path.is_dir())


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the files of one release."""
    shutil.copytree(request.param, tmp_path / "release")
    return tmp_path / "release"


def expected(release: Path, what: str) -> Any:
    return json.loads((release / "expected.json").read_text())[what]


def test_this_version_has_its_files() -> None:
    assert sej.__version__ in {path.name for path in RELEASES}, "run python -m tools.golden_release"


def test_a_journal_is_read_and_continued(release: Path) -> None:
    path, found = release / "journal", expected(release, "journal")
    journal = sej.Journal(path)
    assert journal.verify() == []
    read = [[m.offset, m.timestamp, m.type, m.key.hex(), m.value.hex()] for m in sej.Scanner(path, verify=True)]
    assert read == found["messages"]
    assert sej.read_offset(path, "billing") == found["offset"]["billing"]
    name, number, (first, end) = found["batch"]
    with sej.Writer(path) as writer:
        assert writer.recovery is None
        assert writer.append_once(name, number, [b"once", b"and once"]) == range(first, end), "it was appended before"
        assert writer.append(b"more") == len(read)
    with sej.Offset(path, "billing") as kept:
        kept.commit(len(read))
    assert [m.value for m in sej.Scanner(path, len(read))] == [b"more"]


def test_a_queue_continues_with_the_state_of_each_item(release: Path) -> None:
    found = expected(release, "queue")
    with sej.open_queue(release / "queue", "worker", max_attempts=1) as queue:
        stats = queue.stats()
        assert (stats.ready, stats.delayed, stats.leased, stats.dead) == (
            len(found["ready"]), found["delayed"], 0, len(found["dead"]),
        )  # fmt: skip
        values = []
        while (item := queue.get(timeout=0)) is not None:
            values.append(item.value.decode())
            item.done()
        assert values == found["ready"]
        assert queue.redrive() == len(found["dead"])
        again = queue.get(timeout=0)
        assert again is not None
        assert again.value.decode() == found["dead"][0][0]
        again.done()


def test_a_queue_with_order_per_key_continues(release: Path) -> None:
    path, found = release / "keyed", expected(release, "keyed")

    def take_all(queue: sej.WorkQueue) -> list[str]:
        values = []
        while (item := queue.get(timeout=0)) is not None:
            values.append(item.value.decode())
            assert item.headers == found["headers"].get(values[-1], {})
            item.done()
        return values

    with sej.open_queue(path, "worker", max_attempts=1, rate="3/d", clock=FakeClock()) as queue:
        stats = queue.stats()
        assert (stats.paused, stats.leased, stats.dead, stats.done) == (True, 0, 1, 1)
        (dead,) = queue.items("dead")
        assert (dead.value.decode(), dead.headers) == (found["dead"][0], found["headers"][found["dead"][0]])
        assert take_all(queue) == []
        queue.resume()
        assert take_all(queue) == found["ready"][:1], "two of the three items of the day were taken before"
    with sej.open_queue(path, "worker", max_attempts=1) as queue:
        assert take_all(queue) == found["ready"][1:], "the key of the dead letter is blocked"
        assert queue.redrive() == 1
        assert take_all(queue) == found["redriven"]
    with pytest.raises(ValueError, match="order"):
        sej.open_queue(path, "worker", order="ready")


def test_a_sharded_journal_is_read_and_continued(release: Path) -> None:
    root, found = shard.Path(release / "shards", prefix="orders", bits=1), expected(release, "shards")
    with shard.Scanner(root) as scanner:
        assert sorted([m.key.decode(), m.value.decode()] for _, m in scanner) == found
    assert list(shard.check(root.root)) == []
    with shard.Writer(root) as writer:
        writer.append(b"more", b"key 1")
    with shard.Scanner(root) as scanner:
        assert len(list(scanner)) == len(found) + 1


def test_a_text_queue_keeps_its_marks(release: Path) -> None:
    path = release / "text" / "jobs.tq"
    marks = expected(release, "text")
    assert textqueue.check(path) == []
    with textqueue.TextQueue(path) as queue:
        (message,) = queue.messages()
        assert message.value == marks.pop("-")
        message.mark_as_cleared()
        assert list(queue.messages()) == []
    lines = path.read_text().splitlines()
    assert [line for line in lines if line[0] == "!"] == ["!" + marks["!"].splitlines()[0]]
    assert len([line for line in lines if line[0] == "="]) == 2


@pytest.mark.parametrize(("backend", "spool"), [("kestrel", "spool"), ("libkestrel", "segmented")])
def test_a_queue_of_kestrel_continues(release: Path, backend: str, spool: str) -> None:
    with sej.open_queue(release / spool / "cars", backend=backend) as queue:
        values = []
        while (item := queue.get(timeout=0)) is not None:
            values.append(item.value.decode())
            item.done()
    assert values == expected(release, backend)
