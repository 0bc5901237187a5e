"""A split loses and repeats no message, whatever interrupts it."""

import os
from pathlib import Path

import pytest

import sej
from sej.system.clock import SYSTEM
from sej.system.disk import OS, Disk, OsDisk
from tests.crash.disk import CrashDisk, FaultyDisk
from tests.textqueue.claiming import claim_elsewhere, create, lined, plain
from textqueue import TextQueue, check
from textqueue.editing.archive_and_split import Part, split
from textqueue.editing.queue_file import Options
from textqueue.editing.tq_file import TqFile
from textqueue.errors import InvalidTextError, TextQueueError
from textqueue.ledger.sidecar import sidecar_path

BEFORE = b"# note\n=a\n-b\n\n-c\n?stray\n!d\n"
PIECES = {"/q/new/jobs-a.tq": b"# note\n=a\n-b\n", "/q/new/jobs-c.tq": b"-c\n!d\n"}
REST = b"\n?stray\n"


def by_half(part: Part) -> str:
    return "/q/new/jobs-a.tq" if part.raw[1:2] in b"ab" else "/q/new/jobs-c.tq"


def source_of(path: str, disk: Disk) -> TqFile:
    return TqFile(path, Options(disk, SYSTEM, 0, "reapply", []))


def content(disk: CrashDisk, path: str) -> bytes | None:
    return None if disk.status(path) is None else disk.open(path, "read").read(1000, 0)


def test_a_split_survives_a_power_loss_at_every_step() -> None:
    disk = CrashDisk()
    disk.mkdir("/q")
    disk.mkdir("/q/new")
    create(disk, "/q/jobs.tq", BEFORE)
    disk.mark("made")
    assert split(source_of("/q/jobs.tq", disk), by_half) == dict.fromkeys(PIECES, 2)
    states = {"before": 0, "between": 0, "after": 0}
    for crash in disk.crash_states():
        if not crash.marks:
            continue
        left = content(crash.disk, "/q/jobs.tq")
        there = {path: found for path in PIECES if (found := content(crash.disk, path)) is not None}
        assert left in (BEFORE, REST)
        assert all(PIECES[path] == found for path, found in there.items())
        assert left == REST or not there, "no message is in two files"
        states["before" if left == BEFORE else "after" if len(there) == 2 else "between"] += 1
        source = source_of("/q/jobs.tq", crash.disk)
        split(source, by_half)
        assert content(crash.disk, "/q/jobs.tq") == REST
        assert {path: content(crash.disk, path) for path in PIECES} == PIECES, "the next run completes it"
        names = [name for name in crash.disk.list("/q/new") if name.endswith(".new")]
        assert names == []
    assert all(states.values()), states


@pytest.mark.parametrize("fault", ["eio", "enospc", "short"])
@pytest.mark.parametrize("fail_at", range(1, 50, 2))
def test_whatever_call_fails_no_message_is_lost_or_repeated(tmp_path: Path, fail_at: int, fault: str) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(lined(BEFORE))
    disk = FaultyDisk(OS, fail_at, fault)  # type: ignore[arg-type]
    choose = {b"a": "x.tq", b"b": "x.tq", b"c": "y.tq", b"d": "y.tq"}

    def target(part: Part) -> str:
        return str(tmp_path / choose[part.raw[1:2]])

    first = source_of(str(path), disk)
    try:
        split(first, target)
    except OSError:
        assert disk.failed
    first.file.close()
    if not (tmp_path / ".jobs.tq.split").exists():
        assert [one.name for one in tmp_path.iterdir() if one.suffix in (".new", ".rest")] == [], "no copies remain"
    entries = b"".join(one.read_bytes() for one in sorted(tmp_path.glob("[jxy]*.tq")))
    for text in (b"=a\n", b"-b\n", b"-c\n", b"!d\n"):
        assert entries.count(text) <= 1
    split(source_of(str(path), OS), target)
    found = {one.name: plain(one) for one in tmp_path.glob("[jxy]*.tq")}
    assert found == {"jobs.tq": REST, "x.tq": b"# note\n=a\n-b\n", "y.tq": b"-c\n!d\n"}


def test_a_damaged_note_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n")
    source = source_of(str(path), OS)
    Path(sidecar_path(str(path), ".split")).write_text("{")
    with pytest.raises(TextQueueError, match="not the note of an interrupted split"):
        split(source, lambda part: str(tmp_path / "x.tq"))


class Stopping(OsDisk):
    """A disk whose user presses Ctrl-C before the first new file gets its name."""

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        if os.fspath(source).endswith(".new"):
            raise KeyboardInterrupt
        super().rename(source, target)


def stopped(path: Path, target: str) -> None:
    """Split a file so that all its messages are in a new file that has not its name yet."""
    source = source_of(str(path), Stopping())
    with pytest.raises(KeyboardInterrupt):
        split(source, lambda part: target)
    source.file.close()
    assert plain(path) == b""


def test_a_split_is_completed_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n")
    monkeypatch.chdir(tmp_path)
    stopped(path, "new.tq")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    split(source_of(str(path), OS), lambda part: None)
    assert plain(tmp_path / "new.tq") == b"-a\n"


def test_a_split_is_completed_in_a_directory_that_was_moved(tmp_path: Path) -> None:
    (tmp_path / "old" / "parts").mkdir(parents=True)
    path = tmp_path / "old" / "jobs.tq"
    path.write_bytes(b"-a\n")
    stopped(path, str(tmp_path / "old" / "parts" / "new.tq"))
    (tmp_path / "old").rename(tmp_path / "moved")
    split(source_of(str(tmp_path / "moved" / "jobs.tq"), OS), lambda part: None)
    assert plain(tmp_path / "moved" / "parts" / "new.tq") == b"-a\n"


def test_a_split_does_not_replace_a_file_that_was_created_meanwhile(tmp_path: Path) -> None:
    path, new = tmp_path / "jobs.tq", tmp_path / "new.tq"
    path.write_bytes(b"-a\n")
    stopped(path, str(new))
    new.write_bytes(b"-other\n")
    (problem,) = check(path)
    assert "a split of this file runs or was interrupted" in str(problem)
    with pytest.raises(InvalidTextError, match="another program created the file"):
        split(source_of(str(path), OS), lambda part: None)
    assert plain(new) == b"-other\n"
    new.rename(tmp_path / "moved.tq")
    split(source_of(str(path), OS), lambda part: None)
    assert plain(new) == b"-a\n"
    assert check(path) == []


@pytest.mark.parametrize("options", ["", "lease_s=1000"])
def test_a_split_moves_messages_of_a_dead_worker(tmp_path: Path, options: str) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n")
    with claim_elsewhere(path, "import os; os.kill(os.getpid(), 9)", options) as worker:
        worker.wait()
    assert split(source_of(str(path), OS), lambda part: str(tmp_path / "new.tq")) == {str(tmp_path / "new.tq"): 1}


@pytest.mark.parametrize("text", [b"-a\n", b"-a\n\\mutex=%s\n" % (b" " * 50)])
def test_a_split_leaves_a_message_to_the_drain_that_moves_it(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(text)
    script = (
        "import os, sej\n"
        "class Dying(sej.Writer):\n"
        "    def sync(self):\n"
        "        super().sync()\n"
        "        os.kill(os.getpid(), 9)\n"
        f"q.drain_to(Dying({str(tmp_path / 'j')!r}))\n"
    )
    with claim_elsewhere(path, "claim.give_back()\n" + script) as drain:
        drain.wait()
    assert split(source_of(str(path), OS), lambda part: str(tmp_path / "new.tq")) == {}
    with TextQueue(path) as q, sej.Writer(tmp_path / "j") as w:
        assert q.drain_to(w) == 1
    with sej.Scanner(tmp_path / "j") as scanner:
        assert [message.value for message in scanner] == [b"a"]
    assert plain(path) == b"=" + text[1:]
