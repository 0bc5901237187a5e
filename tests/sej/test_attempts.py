"""The note of the message in hand: no crash loses a counted attempt, or counts one for another message."""

from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.reading.attempts import Attempts
from sej.system.disk import OS, Disk, File
from sej.system.sealed import seal, unseal
from tests.crash.disk import CrashDisk
from tests.sej.hooks import HookedDisk
from tests.sej.support import write

pytestmark = pytest.mark.either_codec


class DiedError(BaseException):
    """The process died: from here on it does nothing."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "ofs").mkdir()
    Attempts(Directory(tmp_path, OS), "worker", 1000).appear()
    return tmp_path


def in_hand(path: Path, offset: int, disk: Disk = OS) -> int:
    """Take a message, and die; return the number of earlier attempts that was reported."""
    return Attempts(Directory(path, disk), "worker", 1000).begin(offset, 5)


def dying_at(call: int, cut: int) -> HookedDisk:
    """Return a disk that dies at its call-th call, and writes the first cut bytes of this call."""

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if disk.calls >= call:
            if disk.calls == call and file is not None and data and cut:
                note = unseal(file.path, data.rstrip())
                file.write_at(data[:cut], (note["number"] - 1) % 2 * len(data))  # the two lines are written in turn
            raise DiedError

    disk = HookedDisk(hook)
    return disk


@pytest.mark.parametrize(("before", "now"), [(10, 10), (9, 10), (100, 99)])
def test_a_death_at_any_byte_of_a_note_loses_no_count_and_blames_no_other_message(
    path: Path, before: int, now: int
) -> None:
    note = path / "ofs" / "worker.tries"
    assert [in_hand(path, before) for _ in range(3)] == [0, 1, 2]
    there = note.read_bytes()
    seen: set[bytes] = set()
    died = True
    call = 0
    while died:
        call += 1
        for cut in range(60):  # the rest is blank
            note.write_bytes(there)
            try:
                in_hand(path, now, dying_at(call, cut))
                died = False
            except DiedError:
                if (left := note.read_bytes()) in seen:
                    continue
                seen.add(left)
                blamed = {offset: ended for offset in range(200) if (ended := ended_by(path, offset))}
                assert set(blamed) <= {before, now}
                if before == now:
                    assert blamed[now] in (3, 4)
    assert call > 1


def test_messages_are_counted_though_offsets_are_missing_between_them(path: Path) -> None:
    Attempts(Directory(path, OS), "worker", 2).begin(5000, 5)
    attempts = Attempts(Directory(path, OS), "worker", 2)
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
        consumer = sej.Consumer(
            tmp_path / "j", "worker", max_attempts=3, dead_letter=tmp_path / "dead", timeout=0.0, disk=disk
        )
        consumer.run(lambda message: seen.append(message.offset))

    for call in (3, 5, 9):
        with pytest.raises(DiedError):
            run(dying_at(call, 0))
    run(OS)
    assert seen == [1]
    (letter,) = sej.dead_letters(tmp_path / "dead")
    assert (letter.attempts, letter.reason) == (3, "it ended the process 3 times")


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

    consumer = sej.Consumer(
        "j",
        "worker",
        max_attempts=2,
        dead_letter="dead",
        timeout=0.0,
        commit_messages=10**6,
        commit_interval_s=10**6,
        disk=disk,
    )
    for _ in range(3):
        with pytest.raises(DiedError):
            consumer.run(handle)
        dead = False
    assert consumer.run(handle) == 100


def ended_by(path: Path, offset: int) -> int:
    """What is blamed on a message, without taking it in hand."""
    return Attempts(Directory(path, OS), "worker", 1000).begin(offset, 0)
