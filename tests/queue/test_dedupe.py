"""Dedupe keys whose message was never written: another one takes its offset, and retention takes that one."""

from pathlib import Path

import pytest

import sej
from sej.system.disk import File
from tests.queue.support import FakeClock, kill, opened
from tests.sej.hooks import HookedDisk


class DiedError(BaseException):
    """The process is gone."""


def dies_before_the_message() -> HookedDisk:
    """Whatever the queue's log says, the journal never gets it."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if verb == "write" and file is not None and file.path.endswith(".jnl") and "/jnl/" in file.path:
            raise DiedError

    return HookedDisk(hook)


def work_on(path: Path, clock: FakeClock, disk: HookedDisk | None = None) -> None:
    """Others put, take and end, the head is kept, and retention takes what is done."""
    with opened(path, clock, segment_bytes=100) as q:
        for _ in range(20):
            q.put(b"other")
        clock.move(2)
        q.done_many(q.get_many(100, timeout=0))
    assert sej.Journal(path).clean(max_bytes=0)


@pytest.mark.parametrize("again", [False, True])
def test_a_key_whose_putter_died_is_free_when_its_offset_is_another_messages_and_gone(
    tmp_path: Path, again: bool
) -> None:
    clock = FakeClock()
    dying = opened(tmp_path, clock, dies_before_the_message())
    with pytest.raises(DiedError):
        dying.put(b"job", dedupe_key=b"job")
    kill(dying)
    with opened(tmp_path, clock) as q:
        if again:
            q.put(b"job", dedupe_key=b"job")
        q.put(b"kept", dedupe_key=b"kept")
    work_on(tmp_path, clock)
    with opened(tmp_path, clock) as q:
        assert q.put(b"kept", dedupe_key=b"kept") == int(again)
        offset = q.put(b"job", dedupe_key=b"job")
        found = [item.value for item in q.get_many(10, timeout=0)]
    assert (offset, found) == ((0, []) if again else (21, [b"job"]))


def test_a_dead_letter_comes_back_though_who_put_it_back_died_and_another_message_took_its_place(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    with opened(tmp_path, clock) as q:
        q.put(b"job")
        item = q.get(timeout=0)
        assert item is not None
        item.fail("why")
    dying = opened(tmp_path, clock, dies_before_the_message())
    with pytest.raises(DiedError):
        dying.redrive()
    kill(dying)
    work_on(tmp_path, clock)
    with opened(tmp_path, clock) as q:
        assert q.redrive() == 1
        assert [item.value for item in q.get_many(10, timeout=0)] == [b"job"]


def test_who_wrote_a_message_has_no_need_to_compare_it_with_its_key(tmp_path: Path) -> None:
    clock = FakeClock()
    dying = opened(tmp_path, clock, dies_before_the_message())
    with pytest.raises(DiedError):
        dying.put_many([b"x", b"y"], dedupe_keys=[b"x", b"y"])
    kill(dying)
    with opened(tmp_path, clock) as q, opened(tmp_path, clock) as other:
        q.put(b"a", dedupe_key=b"a")  # below one that was never written: it is compared all the same
        q.put_many([b"b", b"c"])
        q.put_many([b"d", b"e"], dedupe_keys=[b"d", b"e"])
        assert [offset for offset, *_ in q._core.log.state.dedupe.unproven(9)] == [0, 1]
        q.done_many(q.get_many(9, timeout=0))
        other.stats()
        assert [offset for offset, *_ in other._core.log.state.dedupe.unproven(9)] == [0, 0, 1, 3, 4]
        other._core.log.prepare_head()
        assert [offset for offset, *_ in other._core.log.state.dedupe.unproven(9)] == [0, 1]
    with opened(tmp_path, clock) as q:
        assert q._core.log.state.dedupe.unproven(9) == []
        assert [q.put(key, dedupe_key=key) for key in (b"a", b"d", b"e", b"x", b"y")] == [0, 3, 4, 5, 6]
