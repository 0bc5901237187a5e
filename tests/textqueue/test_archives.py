"""Several queues with one archive: a run that dies loses and repeats nothing, whichever queue is archived next."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import sej
from sej.system.clock import SYSTEM
from sej.system.disk import OS, Disk, Mode, OsDisk, OsFile
from tests.crash.disk import CrashDisk, FaultyDisk
from tests.textqueue.claiming import claim_elsewhere, create, got, lined, plain, taken
from textqueue import TextQueue, TextQueueError, check
from textqueue.editing.archive_and_split import Part, split
from textqueue.editing.queue_file import Options
from textqueue.editing.tq_file import TqFile
from textqueue.errors import InvalidTextError
from textqueue.sidecar import sidecar_path

EVERY = ["write", "half", "sync", "rename"]


class DiedError(Exception):
    """The process died here."""


class Archive(OsFile):
    """An archive whose process dies before, in or after the write."""

    at = ""
    then: Callable[[], None]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.then()
        if self.at == "half":
            super().write(bytes(data)[: len(data) // 2])
        if self.at in ("write", "half"):
            raise DiedError
        super().write(data)

    def sync(self) -> None:
        super().sync()
        if self.at == "sync":
            raise DiedError


class Dying(OsDisk):
    """A disk whose process dies at a step of an archive run."""

    def __init__(self, at: str, then: Callable[[], None] = lambda: None) -> None:
        self.at = at
        self.then = then

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        file = super().open(path, mode)
        if os.fspath(path).endswith("done") and self.at != "rename":
            fd = os.dup(file.fileno())
            file.close()
            file = Archive(fd, file.path)
            file.at, file.then = self.at, self.then
        return file

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        if self.at == "rename" and os.fspath(target).endswith("a.tq"):
            self.then()
            raise DiedError
        super().rename(source, target)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    found = tmp_path / "a.tq", tmp_path / "b.tq", tmp_path / "done"
    for path in found[:2]:
        path.write_bytes(lined(b"=run backup\n-next\n=other\n"))
    found[2].write_bytes(b"=old\n")
    return found


def archive(path: Path, target: Path, disk: OsDisk = OS) -> int:
    with TextQueue(path, disk=disk) as q:
        return q.archive(target)


@pytest.mark.parametrize("at", EVERY)
@pytest.mark.parametrize("equal", [True, False])
def test_a_run_of_another_queue_after_one_that_died(paths: tuple[Path, Path, Path], at: str, *, equal: bool) -> None:
    a, b, done = paths
    if not equal:
        b.write_bytes(b"=b\n")
    with pytest.raises(DiedError):
        archive(a, done, Dying(at))
    archive(b, done)
    second = b"=run backup\n=other\n" if equal else b"=b\n"
    assert plain(done) == b"=old\n" + second, "the run that died is undone"
    with TextQueue(a) as q:
        got(q).mark_as_cleared()
        assert q.archive(done) == 3
    assert plain(done) == b"=old\n" + second + b"=run backup\n=next\n=other\n"
    assert [file.name for file in done.parent.iterdir() if "incoming" in file.name or "archive" in file.name] == []


@pytest.mark.parametrize("at", EVERY)
@pytest.mark.parametrize("first", [0, 1])
def test_a_run_that_died_in_a_directory_that_was_moved(
    tmp_path: Path, paths: tuple[Path, Path, Path], at: str, first: int
) -> None:
    a, _, done = paths
    with pytest.raises(DiedError):
        archive(a, done, Dying(at))
    (tmp_path / "moved").mkdir()
    for path in tmp_path.iterdir():
        if path.name != "moved":
            path.rename(tmp_path / "moved" / path.name)
    moved = [tmp_path / "moved" / path.name for path in paths]
    archive(moved[first], moved[2])
    archive(moved[1 - first], moved[2])
    assert plain(moved[2]) == b"=old\n" + b"=run backup\n=other\n" * 2
    assert [plain(path) for path in moved[:2]] == [b"-next\n"] * 2


@pytest.mark.parametrize("at", EVERY)
def test_a_run_with_another_archive_after_one_that_died(paths: tuple[Path, Path, Path], at: str) -> None:
    a, b, done = paths
    with pytest.raises(DiedError):
        archive(a, done, Dying(at))
    assert archive(a, done.with_name("elsewhere")) == 2
    assert plain(done) == b"=old\n"
    assert archive(b, done) == 2
    assert plain(done) == b"=old\n=run backup\n=other\n"


@pytest.mark.parametrize("at", ["write", "rename"])
def test_two_runs_at_the_same_time_wait_for_each_other(paths: tuple[Path, Path, Path], at: str) -> None:
    a, _, done = paths
    locked = []

    def look() -> None:
        file = OS.open(done.with_name(".done.lck"), "edit")
        locked.append(not file.lock())
        file.close()

    with pytest.raises(DiedError):
        archive(a, done, Dying(at, look))
    assert locked == [True]


def test_an_archive_that_an_editor_replaces_during_the_run(paths: tuple[Path, Path, Path]) -> None:
    a, _, done = paths

    def save() -> None:
        new = done.with_name("new")
        new.write_bytes(b"=old\n# a person\n")
        new.replace(done)
        disk.then = lambda: None

    disk = Dying("", save)
    assert archive(a, done, disk) == 2
    assert plain(done) == b"=old\n# a person\n=run backup\n=other\n"


def test_what_another_program_has_written_after_a_run_that_died_is_kept(paths: tuple[Path, Path, Path]) -> None:
    a, _, done = paths
    with pytest.raises(DiedError):
        archive(a, done, Dying("rename"))
    done.write_bytes(done.read_bytes() + b"# mine\n")
    assert archive(a, done) == 2
    assert plain(done) == b"=old\n=run backup\n=other\n# mine\n=run backup\n=other\n"


def test_a_note_that_is_damaged_stops_the_next_run(paths: tuple[Path, Path, Path]) -> None:
    a, b, done = paths
    with pytest.raises(DiedError):
        archive(a, done, Dying("rename"))
    incoming = done.with_name(".done.incoming")
    incoming.write_bytes(incoming.read_bytes().replace(b"a.tq", b"b.tq"))
    with pytest.raises(TextQueueError, match="damaged") as error:
        archive(b, done)
    assert error.value.path == str(incoming)
    incoming.unlink()
    assert archive(b, done) == 2
    assert plain(done) == b"=old\n" + b"=run backup\n=other\n" * 2, "as the error says: what is in both remains"


def test_two_queues_survive_a_power_loss_at_every_step() -> None:
    disk = CrashDisk()
    disk.mkdir("/q")
    for name in ("a", "b"):
        create(disk, f"/q/{name}.tq", b"=x\n-z\n=y\n")
    disk.mark("made")
    with TextQueue("/q/a.tq", disk=disk, settle_s=0) as q:
        q.archive("/q/done")
    states = 0
    for crash in disk.crash_states():
        if not crash.marks:
            continue
        states += 1
        assert content(crash.disk, "/q/a.tq") in (b"=x\n-z\n=y\n", b"-z\n")
        assert content(crash.disk, "/q/a.tq") != b"-z\n" or content(crash.disk, "/q/done") == b"=x\n=y\n"
        for name in ("b", "a"):
            with TextQueue(f"/q/{name}.tq", disk=crash.disk, settle_s=0) as q:
                q.archive("/q/done")
        assert content(crash.disk, "/q/done") == b"=x\n=y\n=x\n=y\n"
    assert states > 5


def test_what_a_stale_save_brings_back_is_removed_again_and_not_archived_twice(tmp_path: Path) -> None:
    path, target = tmp_path / "jobs.tq", tmp_path / "done.tq"
    path.write_bytes(b"# of monday\n" + b"".join(b"-job %d\n" % n for n in range(5)) + b"\n-rest\n")
    queued = path.read_bytes()
    with TextQueue(path) as q:
        for _ in range(5):
            assert taken(q).done()
        done = path.read_bytes()
        assert q.archive(target) == 5
        archived = target.read_bytes()
        for buffer in (queued, done, b"-a line above\n" + queued):
            path.write_bytes(buffer)
            claim = taken(q)
            assert claim.message.value in {"rest", "a line above"}
            claim.give_back()
            assert q.archive(target) == 0
            assert plain(target) == archived
            assert plain(path).endswith(b"\n-rest\n")
            assert b"job" not in plain(path)
        assert q.archive(target) == 0


def test_what_a_person_marked_and_an_archive_run_moved_is_not_delivered_again(tmp_path: Path) -> None:
    """Also if a variable had been set before. The ledger had no mark of these messages."""
    path, target = tmp_path / "jobs.tq", tmp_path / "done.tq"
    path.write_bytes(b"# jobs\n" + b"".join(b"-job %d\n\\state=    \n" % n for n in range(4)))
    first = path.read_bytes()
    with TextQueue(path) as q:
        claim = taken(q)
        claim.message["state"] = "s1"
        claim.give_back()
        buffer = path.read_bytes()
        claim = taken(q)
        claim.message["state"] = "s2"
        assert claim.done()
        path.write_bytes(buffer.replace(b"-", b"="))
        assert q.take() is None
        assert q.archive(target) == 4
        path.write_bytes(first)
        assert q.take() is None
        assert q.archive(target) == 0
    assert plain(target).count(b"job ") == 4


# --- A split loses and repeats no message, whatever interrupts it


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
