"""The merge: order, memory of its place, silent, new, damaged and many clients."""

import json
import os
import shutil
import threading
from collections.abc import Iterable
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hub
import sej
from hub import Source
from hub.naming import find_sources
from sej.system.sealed import unseal
from tests.crash.disk import CrashDisk, LostName
from tests.hub.support import at, fill
from tests.sej.hooks import Worker
from tests.sej.support import GOLDEN, overwrite, segment
from tests.ticks import next_tick


def order(pairs: list[tuple[Source, sej.Message]]) -> list[tuple[int, str, int]]:
    return [(message.timestamp, source.client, message.offset) for source, message in pairs]


def send(root: Path, **clients: Iterable[int]) -> None:
    """Send messages of these times to the journal j of each client; the offsets begin with 0."""
    with hub.Store(root) as store:
        for client, times in clients.items():
            store.put(client, "j", [at(offset, time) for offset, time in enumerate(times)])


BATCHES = st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=9), min_size=1, max_size=7)


@given(stamps=BATCHES, limit=st.integers(1, 9))
def test_a_merge_is_a_sort_of_what_is_at_the_head(stamps: list[list[int]], limit: int) -> None:
    disk = CrashDisk()
    lines: dict[Source, list[sej.Message]] = {}
    with hub.Store("/hub", disk=disk, min_free_bytes=0) as store:
        for number, line in enumerate(stamps):
            source = Source(f"c{number // 2}", f"j{number % 2}")
            lines[source] = [at(offset, stamp) for offset, stamp in enumerate(line)]
            store.put(*source, lines[source])
    with hub.Merge("/hub", "r", disk=disk) as merge:
        found = [pair for batch in iter(lambda: merge.read(limit), []) for pair in batch]
    expected = []
    while any(lines.values()):
        first = min(
            (line[0].timestamp, source.client, line[0].offset, source) for source, line in lines.items() if line
        )
        expected.append((first[-1], lines[first[-1]].pop(0)))
    assert found == expected


# --- remembering


def test_commit_keeps_returned_messages_and_no_more(tmp_path: Path) -> None:
    send(tmp_path, **{client: range(ord(client), 1000 + ord(client), 10) for client in "abc"})
    seen = []
    while True:
        with hub.Merge(tmp_path, "r") as merge:
            part = []
            for part_number, pair in enumerate(merge):
                part.append(pair)
                if part_number == 40:
                    break
            merge.commit()
            merge.read(5)  # returned after the commit, so returned again
        if not part:
            break
        seen += part
    assert len(seen) == 300
    assert all(before < after for before, after in pairwise(order(seen)))
    vector = unseal("r.json", (tmp_path / ".merge" / "r.json").read_bytes())
    assert vector["offsets"] == {"a.j": 100, "b.j": 100, "c.j": 100}
    assert [sej.read_offset(tmp_path / f"{client}.j", "r") for client in "abc"] == [100] * 3


def test_retention_knows_a_merge_before_its_first_commit(tmp_path: Path) -> None:
    with hub.Store(tmp_path, segment_bytes=50) as store:
        store.put("a", "j", [at(offset, offset) for offset in range(20)])
    with hub.Merge(tmp_path, "r") as merge:
        merge.read(1)
        assert sej.Journal(tmp_path / "a.j").offsets() == {"r": None}
        assert sej.Journal(tmp_path / "a.j").clean(max_bytes=0) == []


def test_a_mirror_that_lags_catches_up(tmp_path: Path) -> None:
    """A crash between the vector and the mirrors: the vector is the truth."""
    send(tmp_path, a=range(5))
    with hub.Merge(tmp_path, "r") as merge:
        list(merge)
        merge.commit()
    mirror = tmp_path / "a.j" / "ofs" / "r.ofs"
    next_tick(mirror)
    mirror.write_bytes((2).to_bytes(8, "big"))
    with hub.Merge(tmp_path, "r") as merge:
        assert list(merge) == []
    assert sej.read_offset(tmp_path / "a.j", "r") == 5


@pytest.mark.parametrize("restored", [True, False])
def test_retention_waits_for_a_merge_whose_vector_was_restored_or_removed(tmp_path: Path, restored: bool) -> None:
    fill(tmp_path / "a.j", [at(n, n) for n in range(20)], segment_bytes=100)
    vector = tmp_path / ".merge" / "r.json"
    with hub.Merge(tmp_path, "r") as merged:
        merged.read(5)
        merged.commit()
        older = vector.read_bytes()
        assert len(merged.read()) == 15
        merged.commit()
    if restored:
        vector.write_bytes(older)
    else:
        vector.unlink()
    with hub.Merge(tmp_path, "r") as merged:
        merged.read(1)
    sej.Journal(tmp_path / "a.j").clean(max_bytes=0)
    with hub.Merge(tmp_path, "r") as merged:
        assert [message.offset for _, message in merged] == list(range(5 if restored else 0, 20))


def test_one_merge_a_name(tmp_path: Path) -> None:
    hub.Store(tmp_path).close()
    with hub.Merge(tmp_path, "r"), hub.Merge(tmp_path, "s"), pytest.raises(sej.LockedError):
        hub.Merge(tmp_path, "r")
    with pytest.raises(sej.InvalidNameError):
        hub.Merge(tmp_path, "../r")
    with pytest.raises(sej.JournalNotFoundError):
        hub.Merge(tmp_path / "nothing", "r")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"format": 2, "offsets": {}}',
        '{"format": 1, "offsets": {}}',
        '{"format": 1, "offsets": {"a.j": "7"}, "journals": {}}',
        '{"format": 1, "offsets": {}, "journals": []}',
        '{"format": 1, "offsets": {}, "journals": {"a.j": 7}}',
        '{"format": 1, "offsets": {}, "journals": {"a.j": "no hex"}}',
    ],
)
def test_an_invalid_vector_is_named(tmp_path: Path, text: str) -> None:
    hub.Store(tmp_path).close()
    (tmp_path / ".merge").mkdir()
    (tmp_path / ".merge" / "r.json").write_text(text)
    with pytest.raises(hub.HubError, match=r"r\.json"):
        hub.Merge(tmp_path, "r")


# --- damage


def test_a_damaged_client_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    with hub.Store(tmp_path) as store:
        for client in "abc":
            store.put(client, "j", [at(offset, offset * 10 + ord(client), b"x" * 100) for offset in range(50)])
    overwrite(segment(tmp_path / "b.j", 0), 126 * 20 + 122, b"\xff" * 4)
    with hub.Merge(tmp_path, "r") as merge:
        with pytest.raises(hub.SourceError, match=r"b\.j") as broken:
            list(merge)
        assert broken.value.source == Source("b", "j")
        assert isinstance(broken.value.__cause__, sej.CorruptionError)
        with pytest.raises(hub.SourceError):  # it does not go away by itself
            list(merge)
        merge.skip(broken.value.source)
        rest = list(merge)
        assert {source.client for source, _ in rest} == {"a", "c"}
        assert list(merge.skipped) == [Source("b", "j")]
        merge.commit()
    with hub.Merge(tmp_path, "s", on_error="skip") as merge:
        found = order(list(merge))
        assert [sum(client == name for _, client, _ in found) for name in "abc"] == [50, 20, 50]
        assert list(merge.skipped) == [Source("b", "j")]


def test_a_commit_keeps_returned_messages_of_a_client_that_was_left_out(tmp_path: Path) -> None:
    send(tmp_path, a=range(20), b=[50])
    for count, due in ((5, 5), (3, 8)):
        with hub.Merge(tmp_path, "r") as merge:
            assert len(merge.read(count)) == count
            merge.skip(Source("a", "j"))
            merge.commit()
        assert sej.read_offset(tmp_path / "a.j", "r") == due
    with hub.Merge(tmp_path, "r") as merge:
        merge.read(2)
        merge.skip(Source("a", "j"))
        shutil.rmtree(tmp_path / "a.j")  # its place cannot be kept any more: the others' is
        assert [source.client for source, _ in merge][-1] == "b"
        merge.commit()
    assert sej.read_offset(tmp_path / "b.j", "r") == 1


@pytest.mark.parametrize("count", [5, 10, 15])
def test_a_directory_that_was_recreated_under_a_merge_is_named(tmp_path: Path, count: int) -> None:
    send(tmp_path, a=range(10), b=[1])
    with hub.Merge(tmp_path, "r") as merge:
        assert len(list(merge)) == 11
        shutil.rmtree(tmp_path / "a.j")
        send(tmp_path, a=range(100, 100 + count), b=[1, 2])
        with pytest.raises(hub.SourceError, match=r"a\.j.*re-created"):
            list(merge)
        merge.skip(Source("a", "j"))
        assert [message.offset for _, message in merge] == [1]


@pytest.mark.parametrize("count", [5, 10, 15])
def test_a_directory_that_was_recreated_between_two_merges_is_named(tmp_path: Path, count: int) -> None:
    send(tmp_path, a=range(10), b=[1])
    with hub.Merge(tmp_path, "r") as merge:
        list(merge)
        merge.commit()
    shutil.rmtree(tmp_path / "a.j")
    send(tmp_path, a=range(100, 100 + count), b=[1, 2])
    with hub.Merge(tmp_path, "r") as merge:
        with pytest.raises(hub.SourceError, match=r"a\.j.*re-created"):
            list(merge)
        merge.skip(Source("a", "j"))
        assert [source.client for source, _ in merge] == ["b"]
        merge.commit()
    with hub.Merge(tmp_path, "r") as merge, pytest.raises(hub.SourceError, match=r"a\.j.*re-created"):
        list(merge)
    with hub.Merge(tmp_path, "other") as merge:
        assert len(list(merge)) == count + 2


def test_a_place_in_the_old_journal_is_not_kept_for_the_new_one(tmp_path: Path) -> None:
    send(tmp_path, a=range(10))
    with hub.Merge(tmp_path, "r") as merge:
        assert len(merge.read(5)) == 5
        shutil.rmtree(tmp_path / "a.j")
        send(tmp_path, a=range(100, 120))
        with pytest.raises(sej.SejError, match="re-created"):
            merge.commit()
    with hub.Merge(tmp_path, "r") as merge:
        assert [message.offset for _, message in merge] == list(range(20))


# --- following


def test_following_waits_for_a_silent_client_and_not_for_ever(tmp_path: Path) -> None:
    now = [100.0]
    with hub.Store(tmp_path) as store:
        store.put("a", "j", [at(0, 10), at(1, 30)])
        store.put("b", "j", [at(0, 20)])
        with hub.Merge(tmp_path, "r", None, lateness_s=5.0, clock=lambda: now[0]) as merge:
            assert order(merge.read(2)) == [(10, "a", 0), (20, "b", 0)]
            # b has nothing more: a's message of 30 waits for what b may still bring.
            assert merge.read(1, timeout=0.0) == [(Source("a", "j"), at(1, 30))]
            store.put("a", "j", [at(2, 50)])
            later = threading.Timer(0.0, lambda: store.put("b", "j", [at(1, 40)]))
            later.start()
            assert order(merge.read(1)) == [(40, "b", 1)]
            later.join()
            now[0] += 5.0  # b was silent for so long that it is not waited for
            assert order(merge.read(1)) == [(50, "a", 2)]


def test_following_ends_after_its_timeout(tmp_path: Path) -> None:
    send(tmp_path, a=[1])
    with hub.Merge(tmp_path, "r", 0.05, lateness_s=0.01) as merge:
        assert len(list(merge)) == 1
        assert list(merge) == []


def test_new_clients_are_taken_in_while_it_runs(tmp_path: Path) -> None:
    def follow() -> list[str]:
        with hub.Merge(tmp_path, "r", 30.0, lateness_s=0.01) as merge:
            found = [source.client for source, _ in islice(merge, 6)]
            merge.commit()
        return sorted(found)

    with hub.Store(tmp_path) as store:
        store.put("m", "j", [at(0, 1)])
        following = Worker(follow)
        for number, client in enumerate(["z", "a", "m2", "m-", "0"]):
            store.put(client, "j", [at(number, 10 + number)])
        assert following.result() == ["0", "a", "m", "m-", "m2", "z"]
    with hub.Merge(tmp_path, "r") as merge:
        assert list(merge) == []


def test_many_directories_in_few_descriptors(tmp_path: Path) -> None:
    count = 30
    for number in range(count):
        fill(
            tmp_path / f"c{number:02d}.j",
            [at(offset, offset * count + number, b"x" * 50) for offset in range(100)],
            segment_bytes=2000,
        )
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    with hub.Merge(tmp_path, "r", max_open=5, memory_bytes=20_000) as merge:
        found = []
        for pair in merge:
            found.append(pair)
            if len(found) % 200 == 0:
                most = max(most, len(os.listdir("/proc/self/fd")) - before)
        assert most <= 5 + 6  # the segments, the lock, and what listing itself takes
    assert [message.timestamp for _, message in found] == list(range(100 * count))


# --- the original's hub


def test_the_originals_hub(tmp_path: Path) -> None:
    case = GOLDEN / "hub"
    expected = json.loads((case / "expected.json").read_text())["clients"]
    shutil.copytree(case / "dir", tmp_path / "hub")
    assert {source.name for source in find_sources(os.fspath(tmp_path / "hub"))} == set(expected)
    with hub.Merge(tmp_path / "hub", "r") as merge:
        found = list(merge)
    assert len(found) == sum(map(len, expected.values()))
    for name, messages in expected.items():
        mine = [message for source, message in found if source.name == name]
        assert [message.offset for message in mine] == [message["offset"] for message in messages]
        assert [message.type for message in mine] == [message["type"] for message in messages]
    with hub.Store(tmp_path / "hub") as store:  # ours continues where the original's ended
        source = store.sources()[0]
        end = store.end_offset(*source)
        assert store.put(*source, store.get(*source, 0)) == end
        assert store.put(*source, [at(end, 1)]) == end + 1


def test_a_place_whose_name_may_be_lost_is_durable_when_it_is_reported_again() -> None:
    disk = CrashDisk()
    with hub.Store("/hub", disk=disk, min_free_bytes=0) as store:
        store.put("a", "j", [at(offset, offset) for offset in range(4)])
    with hub.Merge("/hub", "r", disk=LostName(disk, "/hub/.merge/r.json")) as merge:
        merge.read(2)
        with pytest.raises(OSError, match="could not be synced"):
            merge.commit()
    with hub.Merge("/hub", "r", disk=disk) as merge:
        assert [message.offset for _, message in merge.read(1)] == [2]
        left = disk.crash()
    with hub.Merge("/hub", "r", disk=left) as merge:
        assert [message.offset for _, message in merge.read(1)] == [2]


def test_every_power_loss_during_commits_repeats_and_never_skips() -> None:
    """The vector is old or new, never ahead of its messages; a mirror is never ahead of the vector."""
    disk = CrashDisk()
    sent = {client: [at(offset, offset * 2 + rank) for offset in range(4)] for rank, client in enumerate("ab")}
    with hub.Store("/hub", disk=disk, min_free_bytes=0) as store:
        for client, messages in sent.items():
            store.put(client, "j", messages)
    with hub.Merge("/hub", "r", disk=disk) as merge:
        for count in (2, 5):
            for _ in range(count):
                assert len(merge.read(1)) == 1
            merge.commit()
            disk.mark(sum(merge.offsets().values()))
    states = 0
    for crash in disk.crash_states():
        if not crash.marks and crash.disk.status("/hub/b.j/jnl") is None:
            continue  # the store was not done yet
        states += 1
        with hub.Merge("/hub", "r", disk=crash.disk) as merge:
            rest = list(merge)
            kept = merge.offsets()
        whole = [message for client in "ab" for message in sent[client]]
        if len(rest) == len(whole):
            assert not crash.marks
        assert len(rest) <= len(whole) - max(crash.marks, default=0)
        for client in "ab":
            mine = [message for source, message in rest if source.client == client]
            assert mine == sent[client][len(sent[client]) - len(mine) :] or not crash.marks
        assert all(offset <= 4 for offset in kept.values())
    assert states > 10
