"""A user edits the file in every way that editors do, while a program has read its messages."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from sej.system.disk import File, Mode, OsDisk, OsFile
from sej.system.locks import end_file_lease
from tests.textqueue.claiming import got, lined, plain, taken
from tests.ticks import next_tick
from textqueue import MessageMovedError, TextQueue
from textqueue.editing.proof import Change, Place
from textqueue.editing.queue_file import QueueFile

Save = Callable[[Path, bytes], None]


def by_rename(path: Path, data: bytes) -> None:
    """Save as Vim, gedit, sed -i and git do."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.replace(path)


def in_place(path: Path, data: bytes) -> None:
    """Save as nano and most others do: truncate the file and write it again."""
    path.write_bytes(data)


def with_backup(path: Path, data: bytes) -> None:
    """Save into a new file; the old file remains under another name."""
    path.replace(path.with_name(path.name + "~"))
    path.write_bytes(data)


def over(path: Path, data: bytes) -> None:
    """Save as rsync --inplace does: overwrite the file, then truncate it."""
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


SAVES = pytest.mark.parametrize("save", [by_rename, in_place, with_backup, over])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n-b\n\\order=17\n-c\n more\n")
    return path


@SAVES
@pytest.mark.parametrize(
    "after",
    [
        b"-a\n-c\n more\n",  # deleted
        b"-a\n-B\n\\order=17\n-c\n more\n",  # another text
        b"-a\n-b\n\\order=18\n-c\n more\n",  # another variable
        b"-a\n-b\n more\n\\order=17\n-c\n more\n",  # one more line
        b"-a\n-b\n\\order=17\n\\x=1\n-c\n more\n",  # one more variable
        b"-a\n#b\n\\order=17\n-c\n more\n",  # commented out
        b"#-a\n-b\n\\order=17\n-c\n more\n"[:3] + b"\n",  # almost empty
        b"-a\n#x-b\n\\order=17\n-c\n more\n",  # the same bytes within another line
        b"",
    ],
)
def test_a_message_that_is_gone_or_changed_is_never_marked(path: Path, save: Save, after: bytes) -> None:
    q = TextQueue(path)
    _a, b, _c = q.messages()
    save(path, after)
    with pytest.raises(MessageMovedError, match="nothing was written") as caught:
        b.mark_as_cleared()
    assert caught.value.path == str(path)
    assert caught.value.position == 3
    assert plain(path) == after


def test_the_file_is_gone(path: Path) -> None:
    q = TextQueue(path)
    a, *_ = q.messages()
    path.unlink()
    with pytest.raises(MessageMovedError, match="gone"):
        a.mark_as_cleared()
    assert not path.exists()
    assert q.get_next() is None


@SAVES
@pytest.mark.parametrize(
    ("on_revert", "action", "texts"),
    [
        ("reapply", "marked again as cleared", ["b", "see\nmore"]),
        ("deliver", "delivered again", ["a", "b", "see\nmore"]),
    ],
)
def test_a_mark_that_a_stale_buffer_reverted(
    path: Path, save: Save, on_revert: Literal["reapply", "deliver"], action: str, texts: list[str]
) -> None:
    path.write_bytes(lined(path.read_bytes()))
    buffer = path.read_bytes()
    q = TextQueue(path, on_revert=on_revert)
    got(q).mark_as_cleared()
    save(path, buffer.replace(b"-c", b"-see"))
    for text in texts:
        m = got(q)
        assert m.value == text
        m.mark_as_cleared()
    assert q.get_next() is None
    assert plain(path) == b"=a\n=b\n\\order=17\n=see\n more\n"
    (conflict,) = q.conflicts
    assert (conflict.kind, conflict.text, conflict.path) == ("reverted", "a", str(path))
    assert conflict.action == action


def test_a_stale_save_within_one_tick_of_the_clock_is_found(path: Path) -> None:
    """Inode, size and modification time are the same: only the mark and the number differ."""
    path.write_bytes(lined(path.read_bytes()))
    buffer = path.read_bytes()
    q = TextQueue(path)
    a, b, _c = q.messages()
    a.mark_as_cleared()
    before = path.stat()
    over(path, buffer)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    b.mark_as_cleared()
    assert plain(path) == b"=a\n=b\n\\order=17\n-c\n more\n"
    assert [conflict.text for conflict in q.conflicts] == ["a"]


@SAVES
def test_edits_above_are_seen_before_none_is_given(path: Path, save: Save) -> None:
    q = TextQueue(path)
    given = [got(q), got(q), got(q)]
    save(path, b"-urgent\n" + path.read_bytes())
    m = got(q)
    assert m.value == "urgent"
    assert q.get_next() is None, "what was given out already is not given out again"
    m.mark_as_cleared()
    for message in given:
        message.mark_as_cleared()
    assert plain(path) == b"=urgent\n=a\n=b\n\\order=17\n=c\n more\n"


def test_a_walk_continues_at_its_position_when_lines_move(path: Path) -> None:
    lines = [b"-%05d\n" % n for n in range(60_000)]
    path.write_bytes(b"".join(lines))
    q = TextQueue(path)
    found = []
    for m in q.messages():
        found.append(m.value)
        if m.value == "00100":
            by_rename(path, b"# above\n-above\n" + b"".join(lines))
    assert found == [line[1:-1].decode() for line in lines]


def test_a_damaged_or_lost_ledger_loses_only_its_own_records(path: Path) -> None:
    q = TextQueue(path)
    a, b, c = q.messages()
    a.mark_as_cleared()
    ledger = path.with_name(".jobs.tq.log")
    ledger.write_bytes(b"\x00garbage\n= 1 2\n" + plain(ledger) + b"= 3 torn")
    b.mark_as_cleared()
    ledger.unlink()
    c.mark_as_cleared()
    assert plain(path) == b"=a\n=b\n\\order=17\n=c\n more\n"
    assert TextQueue(path).get_next() is None


@pytest.mark.parametrize("edit", ["append", "mark"])
def test_a_program_that_replaces_the_file_again_and_again_delays_an_edit(
    edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded machine may let an editor save between each look at the file and the write."""
    path, new, saves = tmp_path / "jobs.tq", tmp_path / ".new", 150
    path.write_bytes(b"-one\n")
    begin, saved = QueueFile._begin, 0

    def begin_late(queue: QueueFile, file: File) -> bool:
        nonlocal saved
        new.write_bytes(path.read_bytes())
        begun = begin(queue, file)
        if saved < saves:
            saved += 1
            new.replace(path)
        return begun

    with TextQueue(path) as q:
        message = got(q)
        monkeypatch.setattr(QueueFile, "_begin", begin_late)
        if edit == "append":
            q.append("two")
        else:
            message.mark_as_cleared()
        monkeypatch.undo()
    assert saved == saves
    assert plain(path) == (b"-one\n-two\n" if edit == "append" else b"=one\n")


@pytest.mark.parametrize("edit", ["claim", "end of a claim"])
def test_a_save_between_the_look_at_a_message_and_its_write_delays_an_edit(
    edit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor empties the file and writes it again, after it has waited for the lease of the edit."""
    path, saves = tmp_path / "jobs.tq", 0
    path.write_bytes(b"-one\n")
    real = QueueFile.apply

    def apply_in_a_save(
        session: QueueFile, places: Sequence[Place], changes: Sequence[Change | None]
    ) -> list[Place] | None:
        nonlocal saves
        saves += 1
        if saves > 1:
            return real(session, places, changes)
        end_file_lease(session.file)
        session.alone = False
        with path.open("r+b") as file:
            file.truncate(0)
            try:
                return real(session, places, changes)
            finally:
                file.write(b"-one\n")

    with TextQueue(path, disk=OsDisk()) as q:  # not the disk whose edits are one call into C
        claim = q.take() if edit == "end of a claim" else None
        monkeypatch.setattr(QueueFile, "apply", apply_in_a_save)
        if claim is None:
            claim = taken(q)
            assert claim.message.value == "one"
        else:
            assert claim.done()
        monkeypatch.undo()
        assert not q.conflicts
    assert saves == 2


@pytest.mark.parametrize("moment_s", [0.0, 60.0])
def test_a_stale_save_between_proof_and_write_delivers_nothing_twice(
    moment_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark is written into the older buffer, and stays there. It does not show that the buffer was newer."""
    monkeypatch.setattr("textqueue.editing.queue_file.MOMENT_S", moment_s)
    path = tmp_path / "jobs.tq"
    monkeypatch.setattr("textqueue.editing.queue_file.SAVING_S", 0.0)
    path.write_bytes(lined(b"-one\n-two\n-three\n-four\n"))
    real, stale = QueueFile._write_shared, b""

    def write_after_a_save(session: QueueFile, *edit: Any) -> bool:
        nonlocal stale
        assert not session.alone
        if stale:
            next_tick(path)
            editor.seek(0)
            editor.write(stale)
            stale = b""
        return real(session, *edit)

    with TextQueue(path) as q, path.open("r+b", buffering=0) as editor:  # so that no edit gets a lease
        one, two, three = got(q), got(q), got(q)
        one.mark_as_cleared()
        before = path.read_bytes()
        two.mark_as_critical_error()
        stale = before
        with monkeypatch.context() as patched:
            patched.setattr(QueueFile, "_write_shared", write_after_a_save)
            three.mark_as_cleared()
        assert plain(path) == b"=one\n-two\n=three\n-four\n"
        four = got(q)
        assert four.value == "four"
        assert [(each.kind, each.text) for each in q.conflicts] == [("reverted", "two")]
        assert plain(path) == b"=one\n!two\n=three\n-four\n"
        # A user who has seen a mark may reopen the message.
        four.mark_as_cleared()
        next_tick(path)
        editor.seek(0)
        editor.write(path.read_bytes().replace(b"!two", b"-two"))
        assert got(q).value == "two"


class Writing(OsDisk):
    """A disk on which another program, which has the file open, writes right before an append."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.acts = [act]

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode == "append" and os.fspath(path).endswith("/jobs.tq") and self.acts:
            self.acts.pop()()
        return super().open(path, mode)


@pytest.mark.parametrize(
    ("written", "kept"), [(None, b""), (b"-more\n", b"-a\n-b\n-c\n-more\n"), (b"-par", b"-a\n-b\n-c\n-par-new\n")]
)
def test_an_append_right_after_a_write_of_another_program(path: Path, written: bytes | None, kept: bytes) -> None:
    path.write_bytes(b"-a\n-b\n-c\n")
    with path.open("r+b", buffering=0) as other:

        def write() -> None:
            other.seek(0, os.SEEK_END)
            if written is None:
                other.truncate(0)
            else:
                other.write(written)

        with TextQueue(path, disk=Writing(write)) as q:
            new = q.append("new")
            assert plain(path) == kept + b"-new\n"
            assert new.position == len(kept)
