"""Appends on a condition: the next offset, and the fencing token."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from tests.crash.disk import CrashDisk
from tests.sej.support import read_all, values

WRITERS: list[Callable[..., Any]] = [sej.Writer, sej.SharedWriter]


@pytest.mark.parametrize("open_writer", WRITERS)
@pytest.mark.parametrize("durability", ["os", "disk"])
def test_an_append_expects_an_offset(open_writer: Callable[..., Any], durability: str, tmp_path: Path) -> None:
    with open_writer(tmp_path, durability=durability) as w:
        assert w.append(b"a", b"k", 3, 4, expect_offset=0) == 0
        assert w.append_many([b"b", b"c"], expect_offset=1) == range(1, 3)
        for expected in (0, 2, 4, sej.message.MAX_OFFSET):
            for append in (w.append, lambda value, **when: w.append_many([value, value], **when)):
                with pytest.raises(sej.ConflictError) as caught:
                    append(b"x", expect_offset=expected)
                assert (caught.value.path, caught.value.expected, caught.value.found) == (str(tmp_path), expected, 3)
        with pytest.raises(sej.ConflictError):
            w.append_many([], expect_offset=2)
        assert w.append(b"d", expect_offset=3) == 3
    assert values(read_all(tmp_path)) == [b"a", b"b", b"c", b"d"]


def test_of_threads_that_expect_one_offset_one_appends(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        for offset in range(50):
            found: list[int] = []

            def try_it(me: int, offset: int = offset, found: list[int] = found) -> None:
                try:
                    found.append(w.append(b"%d" % me, expect_offset=offset))
                except sej.ConflictError as error:
                    found.append(error.found)

            threads = [threading.Thread(target=try_it, args=(me,)) for me in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(found) == [offset, offset + 1, offset + 1] and w.offset == offset + 1


def test_an_expected_offset_is_that_of_other_processes(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path) as one, sej.SharedWriter(tmp_path) as other:
        one.append(b"a")
        other.append_many([b"b"] * 3)
        with pytest.raises(sej.ConflictError, match="expected 1 to be the next offset, but it is 4"):
            one.append(b"x", expect_offset=1)
        assert one.append(b"c", expect_offset=4) == 4


def test_a_higher_token_ends_the_lower_one(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, token=7) as old, sej.SharedWriter(tmp_path) as free:
        old.append(b"a")
        with sej.SharedWriter(tmp_path, token="next") as new:
            assert (old.token, new.token, free.token) == (7, 8, None)
            for append in (old.append, lambda value: old.append_many([value])):
                with pytest.raises(sej.ConflictError) as caught:
                    append(b"x")
                assert (caught.value.path, caught.value.expected, caught.value.found) == (str(tmp_path), 7, 8)
            new.append(b"b")
        with sej.SharedWriter(tmp_path, token=8) as again:  # the same leader, restarted
            again.append(b"c")
        with pytest.raises(sej.ConflictError):
            sej.SharedWriter(tmp_path, token=7)
        free.append(b"d")
    assert values(read_all(tmp_path)) == [b"a", b"b", b"c", b"d"]


def test_a_token_whose_file_was_removed_or_put_back_is_refused(tmp_path: Path) -> None:
    with sej.SharedWriter(tmp_path, token=1):
        before = (tmp_path / "token").read_bytes()
    with sej.SharedWriter(tmp_path, token=2) as w:
        (tmp_path / "token").unlink()
        with pytest.raises(sej.CorruptionError, match="at least 2, got None"):
            w.append(b"x")
        (tmp_path / "token").write_bytes(before)
        with pytest.raises(sej.CorruptionError, match="at least 2, got 1"):
            w.append(b"x")
        (tmp_path / "token").write_bytes(before[:-3])
        with pytest.raises(sej.CorruptionError, match="is not a fencing token"):
            w.append(b"x")
    assert read_all(tmp_path) == []


def test_a_token_survives_a_power_failure_once_the_writer_is_open() -> None:
    disk = CrashDisk()
    sej.SharedWriter("/j", token=3, disk=disk).close()
    with sej.SharedWriter("/j", token="next", disk=disk) as w:
        assert w.token == 4
        for state in disk._states():
            with pytest.raises(sej.ConflictError):
                sej.SharedWriter("/j", token=3, disk=state)


def test_an_opening_with_a_token_waits_for_an_exclusive_writer(tmp_path: Path) -> None:
    with sej.Writer(tmp_path), pytest.raises(sej.LockedError):
        sej.SharedWriter(tmp_path, token=1, lock_timeout=0.0)
    assert not (tmp_path / "token").exists()
