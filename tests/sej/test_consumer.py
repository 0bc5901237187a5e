"""Consumers: at least once, in order, nothing skipped. A message that cannot be handled becomes a dead letter."""

import asyncio
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.checks import backoff
from sej.journal.directory import Directory
from sej.reading.attempts import Attempts
from sej.system.disk import OS, Disk, File
from sej.system.sealed import seal, unseal
from tests.crash.disk import CrashDisk
from tests.sej.hooks import HookedDisk
from tests.sej.support import read_all, write

pytestmark = pytest.mark.either_codec


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "journal", [b"%d" % n for n in range(300)], keys=[b"k"] * 300, type=7)
    return tmp_path / "journal"


def consumer(path: Path | str, **options: Any) -> sej.Consumer:
    return sej.Consumer(path, "worker", **{"timeout": 0.0, "backoff_s": 0.0001, **options})


def raising(error: BaseException, *offsets: int) -> Callable[[sej.Message], None]:
    """A handler that raises an error at some messages."""

    def handle(message: sej.Message) -> None:
        if message.offset in offsets:
            raise error

    return handle


def letters(path: Path) -> list[tuple[int, int, str]]:
    """Offset, attempts and reason of each dead letter."""
    return [(letter.message.offset, letter.attempts, letter.reason) for letter in sej.dead_letters(path)]


def test_every_message_is_handled_in_order_and_the_place_is_kept(path: Path) -> None:
    seen: list[int] = []
    assert consumer(path).run(lambda message: seen.append(message.offset)) == 300
    assert seen == list(range(300))
    assert sej.read_offset(path, "worker") == 300
    assert consumer(path).run(lambda message: seen.append(message.offset)) == 0


def test_a_failing_message_is_tried_again_and_then_handled(path: Path) -> None:
    tries: list[int] = []

    def handle(message: sej.Message) -> None:
        if message.offset == 5:
            tries.append(message.offset)
            if len(tries) < 3:
                raise ValueError("not yet")

    assert consumer(path).run(handle) == 300
    assert tries == [5, 5, 5]


def test_a_handler_whose_call_runs_nothing_handles_no_message(path: Path) -> None:
    async def later(_: object) -> None:
        """Not reached."""

    for run in (consumer(path).run, consumer(path).run_batches):
        with pytest.raises(TypeError, match="handler must be a function without `async`"):
            run(later)
        with pytest.raises(sej.RetriesExhaustedError, match="the handler returned a coroutine"):
            run(lambda message: later(message))
    assert sej.read_offset(path, "worker") == 0


def test_a_handler_of_other_parameters_handles_no_message(path: Path) -> None:
    def forgets() -> None:
        """Not reached."""

    wrong: Any = forgets
    for run, given in ((consumer(path).run, "message"), (consumer(path).run_batches, "messages")):
        with pytest.raises(TypeError, match=rf"can be called with \({given}\), got forgets\(\) -> "):
            run(wrong)
    assert sej.read_offset(path, "worker") is None
    assert consumer(path).run(print, timeout=0.0) > 0  # a builtin that may not tell its parameters


def test_without_dead_letters_it_stops_at_the_message_and_does_not_skip_it(path: Path) -> None:
    with pytest.raises(sej.RetriesExhaustedError, match="ValueError: never") as caught:
        consumer(path, max_attempts=2).run(raising(ValueError("never"), 9))
    assert caught.value.offset == 9
    assert isinstance(caught.value.__cause__, ValueError)
    assert sej.read_offset(path, "worker") == 9
    seen: list[int] = []
    consumer(path).run(lambda message: seen.append(message.offset))
    assert seen[0] == 9


def test_a_message_is_tried_more_than_a_thousand_times(path: Path) -> None:
    with pytest.raises(sej.RetriesExhaustedError, match="in 1030 attempts"):
        consumer(path, max_attempts=1030, backoff_s=0.0).run(lambda message: 1 / 0)


def test_a_dead_letter_keeps_the_original_and_says_why(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: sej.Message) -> None:
        if message.offset in (3, 299):
            raise KeyError("broken")

    assert consumer(path, max_attempts=2, dead_letter=tmp_path / "dead").run(handle) == 300
    letters = list(sej.dead_letters(tmp_path / "dead"))
    originals = {message.offset: message for message in read_all(path)}
    assert [letter.message for letter in letters] == [originals[3], originals[299]]
    identity = sej.Journal(path).id
    assert identity is not None
    assert {(letter.source, letter.reader, letter.attempts, letter.reason) for letter in letters} == {
        (identity.hex(), "worker", 2, "KeyError: 'broken'")
    }
    assert 'raise KeyError("broken")' in letters[0].traceback
    assert caplog.records[0].getMessage() == (
        f"{path}: reader 'worker': attempt 1 of message 3 failed: KeyError: 'broken'"
    )
    assert caplog.text.count('raise KeyError("broken")') == 4


def test_a_dead_letter_that_was_written_before_a_crash_is_not_written_again(path: Path, tmp_path: Path) -> None:
    reader = consumer(path, max_attempts=1, dead_letter=tmp_path / "dead")
    reader.run(raising(ValueError("broken"), 3))
    with sej.Offset(path, "worker") as kept:
        kept.reset(3)  # as a crash between the letter and the commit leaves it
    reader.run(raising(ValueError("broken"), 3))
    assert letters(tmp_path / "dead") == [(3, 1, "ValueError: broken")]


def test_a_batch_that_fails_is_taken_apart(path: Path, tmp_path: Path) -> None:
    good: set[int] = set()

    def handle(batch: list[sej.Message]) -> None:
        if any(message.offset == 100 for message in batch):
            raise ValueError("poison")
        good.update(message.offset for message in batch)

    found = consumer(path, max_attempts=2, dead_letter=tmp_path / "dead").run_batches(handle, batch_messages=64)
    assert found == 300
    assert good == set(range(300)) - {100}
    assert letters(tmp_path / "dead") == [(100, 2, "ValueError: poison")]


def test_what_was_handled_of_a_batch_that_was_taken_apart_is_kept_by_a_stop(path: Path) -> None:
    seen: list[int] = []
    stopping = consumer(path, max_attempts=2)

    def handle(batch: list[sej.Message]) -> None:
        if len(batch) > 1:
            raise RuntimeError("not so many")
        if batch[0].offset == 2:
            stopping.stop()
            raise RuntimeError("not now")
        seen.append(batch[0].offset)

    assert stopping.run_batches(handle, batch_messages=10) == 2
    assert seen == [0, 1]
    assert sej.read_offset(path, "worker") == 2


def test_stop_returns_while_messages_keep_coming(path: Path) -> None:
    worker = consumer(path, timeout=None)
    with sej.Writer(path) as w:

        def handle(message: sej.Message) -> None:
            w.append(b"one more")
            if message.offset == 500:
                worker.stop()

        assert worker.run(handle) == 501
    assert sej.read_offset(path, "worker") == 501


def test_stop_returns_while_none_come(path: Path) -> None:
    worker = consumer(path, timeout=None)
    idle = threading.Event()

    def handle(message: sej.Message) -> None:
        if message.offset == 299:
            idle.set()

    running = threading.Thread(target=worker.run, args=(handle,))
    running.start()
    assert idle.wait(30)
    worker.stop()
    running.join(30)
    assert not running.is_alive()


def test_progress_is_committed_by_count(path: Path) -> None:
    kept: list[int] = []

    def handle(message: sej.Message) -> None:
        kept.append(sej.read_offset(path, "worker") or 0)

    consumer(path, commit_messages=50, commit_interval_s=3600.0).run(handle)
    assert max(message - offset for message, offset in enumerate(kept)) <= 50
    assert len(set(kept)) == 6


_KILLER = """
import os, sys, sej
def handle(message):
    if message.offset == 120:
        os.kill(os.getpid(), 9)
sej.Consumer(sys.argv[1], "worker", max_attempts=3, timeout=0.0, dead_letter=sys.argv[2]).run(handle)
"""


def test_a_message_that_ends_its_process_is_found_and_put_aside(path: Path, tmp_path: Path) -> None:
    runs = 0
    while True:
        runs += 1
        assert runs < 10
        process = subprocess.run([sys.executable, "-c", _KILLER, path, tmp_path / "dead"], env=os.environ, check=False)
        if process.returncode == 0:
            break
        assert process.returncode == -9
    assert sej.read_offset(path, "worker") == 300
    assert letters(tmp_path / "dead") == [(120, 3, "it ended the process 3 times")]
    assert runs == 5, "one before notes were taken, three that were counted, one that continued"


def test_a_message_whose_handler_exits_is_put_aside(path: Path, tmp_path: Path) -> None:
    reader = consumer(path, max_attempts=2, dead_letter=tmp_path / "dead")
    for _ in range(3):  # one before notes were taken
        with pytest.raises(SystemExit):
            reader.run(raising(SystemExit(3), 120))
    assert reader.run(print) == 180
    assert letters(tmp_path / "dead") == [(120, 2, "it ended the process 2 times")]
    assert not (path / "ofs" / "worker.tries").exists()


def test_an_interrupt_is_no_attempt(path: Path) -> None:
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            consumer(path, max_attempts=1).run(raising(KeyboardInterrupt(), 0))
    assert not (path / "ofs" / "worker.tries").exists()
    assert consumer(path).run(lambda _: None) == 300


def test_a_coroutine_that_was_cancelled_is_a_failed_attempt(path: Path, tmp_path: Path) -> None:
    reader = consumer(path, max_attempts=2, dead_letter=tmp_path / "dead")
    assert reader.run(raising(asyncio.CancelledError(), 120)) == 300
    assert letters(tmp_path / "dead") == [(120, 2, "CancelledError: ")]


@pytest.mark.parametrize("value", [b"0", b"[" * 100_000 + b"\n"], ids=["a number", "nested too deep"])
def test_another_journal_is_not_read_as_dead_letters(value: bytes, tmp_path: Path) -> None:
    write(tmp_path, [value])
    with pytest.raises(sej.CorruptionError, match="not a dead letter"):
        list(sej.dead_letters(tmp_path))


def test_the_journal_of_a_queue_is_not_read_as_dead_letters(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "jobs") as q:
        q.put(b"job")
        with pytest.raises(ValueError, match=rf"pass q\.dead_letter of the open queue, as in '{q.dead_letter}'"):  # type: ignore[attr-defined]
            list(sej.dead_letters(tmp_path / "jobs"))


@pytest.mark.parametrize("options", [{"max_attempts": 0}, {"commit_messages": 0}])
def test_senseless_options_are_refused(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        consumer(path, **options)


def test_a_journal_is_not_its_own_dead_letter_journal(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    for letters in (path, tmp_path / "link", f"{path}/"):
        with pytest.raises(ValueError, match="dead_letter must be another journal"):
            consumer(path, dead_letter=letters)
        with pytest.raises(ValueError, match="dead_letter must be another journal"):
            sej.open_queue(path, "jobs", dead_letter=letters)


# --- the waits between attempts


@pytest.mark.parametrize("rng", [None, random.Random(1)])
def test_waits_double_up_to_the_longest_with_jitter(rng: random.Random | None) -> None:
    waits = [backoff(failures, 1.0, 16.0, rng) for failures in range(1, 2000)]
    limits = [min(16.0, 2.0 ** min(failures, 60)) for failures in range(1999)]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
    assert len(set(waits)) > 1900


# --- the note of the message in hand: no crash loses a counted attempt, or counts one for another message


class DiedError(BaseException):
    """The process died: from here on it does nothing."""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "ofs").mkdir()
    Attempts(Directory(tmp_path, OS), "worker", 1000).appear()
    return tmp_path


def in_hand(path: Path, offset: int, disk: Disk = OS, *, maximum: int = 5) -> int:
    """Take a message, and die; return the number of earlier attempts that was reported."""
    return Attempts(Directory(path, disk), "worker", 1000).begin(offset, maximum)


def dying_at(call: int, cut: int) -> HookedDisk:
    """Return a disk that dies at its call-th call, and writes the first cut bytes of this call."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if disk.calls >= call:
            if disk.calls == call and file is not None and data and cut:
                note = unseal(file.path, data.rstrip())
                file.write_at(data[:cut], (note["number"] - 1) % 2 * len(data))  # the two lines are written in turn
            raise DiedError

    return (disk := HookedDisk(hook))


@pytest.mark.parametrize(("before", "now"), [(10, 10), (9, 10), (100, 99)])
def test_a_death_at_any_byte_of_a_note_loses_no_count_and_blames_no_other_message(
    notes: Path, before: int, now: int
) -> None:
    note = notes / "ofs" / "worker.tries"
    assert [in_hand(notes, before) for _ in range(3)] == [0, 1, 2]
    there = note.read_bytes()
    seen: set[bytes] = set()
    died = True
    call = 0
    while died:
        call += 1
        for cut in range(60):  # the rest is blank
            note.write_bytes(there)
            try:
                in_hand(notes, now, dying_at(call, cut))
                died = False
            except DiedError:
                if (left := note.read_bytes()) in seen:
                    continue
                seen.add(left)
                blamed = {offset: ended for offset in range(200) if (ended := in_hand(notes, offset, maximum=0))}
                assert set(blamed) <= {before, now}
                if before == now:
                    assert blamed[now] in (3, 4)
    assert call > 1


def test_messages_are_counted_though_offsets_are_missing_between_them(notes: Path) -> None:
    Attempts(Directory(notes, OS), "worker", 2).begin(5000, 5)
    attempts = Attempts(Directory(notes, OS), "worker", 2)
    assert attempts.begin(5000, 5) == 1
    assert attempts.careful(9000)
    attempts.begin(9000, 5)
    assert attempts.careful(9000), "while it is tried again"
    assert not attempts.careful(9001), "only 2 messages were in the hands of the process that died"


def test_a_death_while_a_message_is_put_aside_is_no_attempt(tmp_path: Path) -> None:
    write(tmp_path / "j", [b"a", b"b"])
    sej.Offset(tmp_path / "j", "worker").close()
    note = seal("worker.tries", {"offset": 0, "attempts": 3, "number": 1})
    (tmp_path / "j" / "ofs" / "worker.tries").write_bytes(note)
    seen: list[int] = []

    def run(disk: Disk) -> None:
        reader = consumer(tmp_path / "j", max_attempts=3, dead_letter=tmp_path / "dead", disk=disk)
        reader.run(lambda message: seen.append(message.offset))

    for call in (3, 5, 9):
        with pytest.raises(DiedError):
            run(dying_at(call, 0))
    run(OS)
    assert seen == [1]
    assert letters(tmp_path / "dead") == [(0, 3, "it ended the process 3 times")]


def test_a_consumer_that_commits_rarely_finds_the_message_that_kills_it_as_soon() -> None:
    def hook(verb: str, file: File | None, data: bytes) -> None:
        if dead:
            raise DiedError

    dead = False
    disk = HookedDisk(hook, CrashDisk())
    write("j", [b""] * 1700, disk=disk)

    def handle(message: sej.Message) -> None:
        nonlocal dead
        if message.offset == 1600:
            dead = True
            raise DiedError

    reader = consumer(
        "j", max_attempts=2, dead_letter="dead", commit_messages=10**6, commit_interval_s=10**6, disk=disk
    )
    for _ in range(3):
        with pytest.raises(DiedError):
            reader.run(handle)
        dead = False
    assert reader.run(handle) == 100
