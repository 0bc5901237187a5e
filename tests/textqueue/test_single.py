"""One edit in a session of its own: it is made if it is certain, and the twins agree about that."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sej.system.disk import OS, File
from textqueue import TextQueue, hot
from textqueue.editing.queue_file import QueueFile, Session
from textqueue.editing.quick import head_of
from textqueue.format.windows import Token, shared, token_of
from textqueue.hot import single as _single_py
from textqueue.hot.single import BUSY, LINES_BYTES, MOST_LINES, Choice, Last
from textqueue.ledger.records import EMPTY, Record

BEFORE: Final = b"=done\n-a\n-b\n\\mutex=    \n-c\n"
POSITIONS: Final = 6, 9, 24
MINE: Final = b"7@h/1"


def kinds() -> Iterator[Any]:
    yield pytest.param(_single_py.Single, id="reference")
    if hot.IMPLEMENTATION == "c":
        from textqueue.hot import _single_c  # type: ignore[attr-defined]

        yield pytest.param(_single_c.Single, id="compiled")


BOTH = pytest.mark.parametrize("kind", list(kinds()))


class Result(NamedTuple):
    """What an edit did: its result, the number of the message, and what was added to the ledger."""

    result: int
    chosen: int
    fresh: bool
    data: bytes
    line: bytes


class Files:
    """A queue file of three messages, its lock and its ledger."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log_path, self.lock_path = folder / "jobs.tq", folder / "log", folder / "lock"
        self.path.write_bytes(BEFORE)
        self.log_path.write_bytes(b"earlier\n")
        self.lock_path.touch()
        self.token = self.state()
        self.last = Last(ord("="), 0, head_of(0, 0, b"=done\n").split()[2], EMPTY)

    def state(self) -> Token:
        status = OS.status(self.path)
        assert status is not None
        return token_of(status)

    def choices(self, kind: bytes = b"c") -> list[Choice]:
        """Claims of all three messages; that of the second is written into its mutex."""
        ends = [*POSITIONS[1:], len(BEFORE)]
        raws = [BEFORE[at:end] for at, end in zip(POSITIONS, ends, strict=True)]
        new = [raw.replace(b"=    ", b"=7@h ") for raw in raws]
        heads = [head_of(kind[0], at, raw) for at, raw in zip(POSITIONS, raws, strict=True)]
        return [(at, raw, now, head, MINE) for at, raw, now, head in zip(POSITIONS, raws, new, heads, strict=True)]

    def others(self, *lines: tuple[bytes, int, bytes], owner: bytes = b"8@h/2") -> None:
        """Append ledger lines of another process: kind, position, bytes of the message."""
        for kind, at, raw in lines:
            name = head_of(kind[0], at, raw).split()[2]
            self.append(Record(kind[0], at, name, self.state(), owner if kind in b"cm" else EMPTY).line())

    def append(self, line: bytes) -> None:
        with self.log_path.open("ab") as log:
            log.write(line)

    def edit(self, kind: Any, choices: list[Choice] | None = None, *, ordered: bool = True) -> Result:
        lock, log = OS.open(self.lock_path, "edit"), OS.open(self.log_path, "append")
        before = self.log_path.read_bytes()
        try:
            one = kind(OS, lock, log, str(self.path), str(self.path))
            seen = len(b"earlier\n")
            result = one.edit(seen, self.token, self.last, choices or self.choices(), ordered=ordered)
            line = self.log_path.read_bytes().removeprefix(before)
            if result == hot.DONE:
                assert one.token[1] == self.state()
                assert one.line_bytes in (0, len(line))
            else:
                assert line == b""
            other = OS.open(self.lock_path, "edit")
            assert result == BUSY or other.lock(), "the lock is free afterwards"
            other.close()
            return Result(result, one.chosen, bool(one.line_bytes), self.path.read_bytes(), line)
        finally:
            lock.close()
            log.close()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@BOTH
def test_the_first_message_is_edited_and_logged(kind: Any, files: Files) -> None:
    found = files.edit(kind)
    name = files.choices()[0][3].split()[2]
    assert found == (hot.DONE, 0, True, BEFORE, Record(ord("c"), 6, name, files.state(), MINE).line())


@BOTH
def test_only_the_bytes_that_differ_are_written(kind: Any, files: Files) -> None:
    at, raw, _, head, _ = files.choices(b"=")[1]
    new = b"=b\n\\mutex=7@h \n"
    found = files.edit(kind, [(at, raw, new, head, EMPTY)])
    assert (found.result, found.data) == (hot.DONE, BEFORE.replace(raw, new))


@BOTH
@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        ([(b"c", 6, b"-a\n")], 1),
        ([(b"c", 6, b"-a\n"), (b"c", 24, b"-c\n")], 1),
        ([(b"c", 6, b"-a\n"), (b"v", 0, b"=done\n")], 1),
        ([(b"c", 6, b"-a\n"), (b"c", 9, b"-b\n\\mutex=\n"), (b"c", 24, b"-c\n")], None),
        ([(b"v", 6, b"-a\n")], None),
        ([(b"-", 6, b"-a\n")], None),
        ([(b"c", 6, b"-a\n"), (b"-", 6, b"-a\n")], None),
        ([(b"e", 6, b"-a\n")], None),
        ([(b"r", 6, b"-a\n")], None),
        ([(b"c", -6, b"-a\n")], None),
        ([(b"c", 6, b"-a\n")] * (MOST_LINES + 1), None),
        ([(b"c", 6, b"-a\n")] * (LINES_BYTES // 60), None),
    ],
)
def test_messages_that_others_have_claimed_since_are_left_out(
    kind: Any, files: Files, lines: list[tuple[bytes, int, bytes]], chosen: int | None
) -> None:
    files.others(*lines)
    found = files.edit(kind)
    assert found.result == (hot.NOT_DONE if chosen is None else hot.DONE)
    assert chosen is None or (found.chosen, found.fresh) == (chosen, False)


@BOTH
@pytest.mark.parametrize("ordered", [True, False])
def test_a_message_that_was_put_back_before_the_chosen_one_comes_first(kind: Any, files: Files, ordered: bool) -> None:
    files.others((b"-", 6, b"-a\n"))
    assert files.edit(kind, files.choices()[1:], ordered=ordered).result == (hot.NOT_DONE if ordered else hot.DONE)


@BOTH
def test_a_message_that_another_process_has_marked_is_left_out(kind: Any, files: Files) -> None:
    files.path.write_bytes(BEFORE.replace(b"-a", b"!a"))
    files.others((b"c", 24, b"-c\n"), (b"!", 6, b"!a\n"))
    files.token = files.state()
    files.last = Last(ord("!"), 6, head_of(0, 6, b"!a\n").split()[2], EMPTY)
    files.log_path.write_bytes(b"earlier\n")  # these lines were read before, but the messages were found before that
    assert files.edit(kind).chosen == 1


@BOTH
def test_a_line_of_an_edit_next_to_another_program_tells_the_state(kind: Any, files: Files) -> None:
    files.append(Record(ord("="), 0, files.last.digest, shared(files.state()), EMPTY).line())
    files.token = 1, 2, 3
    assert files.edit(kind).result == hot.DONE


@BOTH
@pytest.mark.parametrize("kind_of_line", [b"c", b"-"])
def test_the_mark_before_a_line_whose_edit_cannot_be_seen_must_be_in_the_file(
    kind: Any, files: Files, kind_of_line: bytes
) -> None:
    files.last = files.last._replace(digest=b"0" * 24)
    files.others((kind_of_line, 24, b"-c\n"))
    assert files.edit(kind, ordered=False).result == hot.NOT_DONE
    files.others((b"=", 0, b"=done\n"), (kind_of_line, 24, b"-c\n"))
    assert files.edit(kind, ordered=False).result == hot.DONE


@BOTH
@pytest.mark.parametrize("line", [b"", b"\n>\n", b"c 6 torn", b"c 6 0 1 2 3 - 00000000\n", b"\0" * 20 + b"\n"])
def test_a_line_that_is_not_understood_prevents_the_edit(kind: Any, files: Files, line: bytes) -> None:
    files.append(line)
    assert files.edit(kind).result == (hot.NOT_DONE if line else hot.DONE)


@BOTH
@pytest.mark.parametrize(
    ("last", "holds"),
    [
        (Last(ord("="), 0, b"0" * 24, EMPTY), False),
        (Last(ord("="), 6, head_of(0, 6, b"-a\n").split()[2], EMPTY), False),
        (Last(ord("-"), 6, head_of(0, 6, b"-a\n").split()[2], EMPTY), True),
        (Last(ord("c"), 6, head_of(0, 6, b"-a\n").split()[2], b"8@h/2"), True),
        (Last(ord("m"), 9, head_of(0, 9, b"-b\n\\mutex=\n").split()[2], b"8@h/2+0.1.2"), False),
        (Last(ord("="), 0, b"", EMPTY, b"=done\n"), True),
        (Last(ord("="), 0, b"", EMPTY, b"=dome\n"), False),
        (Last(ord("="), 999, b"", EMPTY, b"=done\n"), False),
    ],
)
def test_the_last_edit_must_be_in_the_file(kind: Any, files: Files, last: Last, holds: bool) -> None:
    files.last = last
    assert files.edit(kind).result == (hot.DONE if holds else hot.NOT_DONE)


@BOTH
def test_a_claim_of_another_process_in_the_mutex_is_a_last_edit(kind: Any, files: Files) -> None:
    raw = b"-b\n\\mutex=8@h \n"
    files.path.write_bytes(BEFORE.replace(b"-b\n\\mutex=    \n", raw))
    files.token = files.state()
    name = head_of(0, 9, raw).split()[2]
    for holder, result in ((b"8@i", hot.NOT_DONE), (b"8@h+1.2.3", hot.DONE)):
        files.last = Last(ord("m"), 9, name, holder)
        assert files.edit(kind).result == result


def _moved(files: Files) -> None:
    files.path.write_bytes(b"#\n" + BEFORE)
    files.token = files.state()


def _continued(files: Files) -> None:
    files.path.write_bytes(BEFORE.replace(b"-a\n", b"-a\n "))
    files.token = files.state()


def _changed(files: Files) -> None:
    files.path.write_bytes(BEFORE.replace(b"-a", b"-A"))
    files.token = files.state()


def _grown(files: Files) -> None:
    with files.path.open("ab") as file:
        file.write(b"-d\n")


def _gone(files: Files) -> None:
    files.path.unlink()
    files.path.with_name("other").touch()


@BOTH
@pytest.mark.parametrize("what", [_moved, _continued, _changed, _grown])
def test_a_foreign_change_prevents_the_edit(kind: Any, files: Files, what: Callable[[Files], None]) -> None:
    what(files)
    after = files.path.read_bytes()
    found = files.edit(kind)
    assert (found.result, found.data) == (hot.NOT_DONE, after)


@BOTH
def test_a_file_that_is_open_elsewhere_or_gone_is_not_edited(kind: Any, files: Files) -> None:
    with files.path.open("rb"):
        assert files.edit(kind).result == hot.NOT_DONE
    aside = files.path.rename(files.path.with_name("aside"))
    one = kind(
        OS, OS.open(files.lock_path, "edit"), OS.open(files.log_path, "append"), str(files.path), str(files.path)
    )
    assert one.edit(8, files.token, files.last, files.choices(), ordered=True) == hot.NOT_DONE
    assert aside.read_bytes() == BEFORE


@BOTH
def test_while_another_process_has_the_lock_nothing_is_done(kind: Any, files: Files) -> None:
    holder = OS.open(files.lock_path, "edit")
    assert holder.lock()
    assert files.edit(kind).result == BUSY
    holder.unlock()
    assert files.edit(kind).result == hot.DONE
    holder.close()


@BOTH
def test_an_edit_in_a_file_that_is_not_at_the_path_any_more_does_not_count(kind: Any, files: Files) -> None:
    elsewhere = files.path.with_name("elsewhere")
    elsewhere.write_bytes(BEFORE)
    lock, log = OS.open(files.lock_path, "edit"), OS.open(files.log_path, "append")
    one = kind(OS, lock, log, str(elsewhere), str(files.path))
    assert one.edit(8, files.token, files.last, files.choices(), ordered=True) == hot.NOT_DONE
    assert files.log_path.read_bytes() == b"earlier\n"
    lock.close()
    log.close()


LINES = st.lists(
    st.tuples(st.sampled_from([b"c", b"m", b"=", b"-", b"v", b"a", b"e"]), st.sampled_from([0, *POSITIONS])), max_size=4
)


@given(lines=LINES, junk=st.sampled_from([b"", b"", b"", b"x"]), ordered=st.booleans(), cut=st.integers(0, 2))
def test_the_twins_agree(lines: list[tuple[bytes, int]], junk: bytes, ordered: bool, cut: int) -> None:
    found = []
    for param in kinds():
        with tempfile.TemporaryDirectory() as folder:
            files = Files(Path(folder))
            ends = dict(zip((0, *POSITIONS), (*POSITIONS, len(BEFORE)), strict=True))
            files.others(*((kind, at, BEFORE[at : ends[at]]) for kind, at in lines))
            files.append(junk)
            got = files.edit(param.values[0], files.choices()[cut:], ordered=ordered)
            found.append((got.result, got.result == hot.DONE and got.chosen, got.data, got.line.split(b" ")[:3]))
    assert found[0] == found[-1]


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[tuple[TextQueue, TextQueue]]:
    """Two queue objects on a file of 40 messages. Each has claimed two."""
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"".join(b"-%d\n" % number for number in range(40)))
    with TextQueue(path) as one, TextQueue(path) as other:
        for q in (one, other, one, other):
            claim = q.take()
            assert claim is not None
            assert claim.done()
        yield one, other


def test_claims_in_a_row_need_no_sessions(queues: tuple[TextQueue, TextQueue], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("textqueue.ledger.lock._LOOK_S", 600.0)
    monkeypatch.setattr("textqueue.editing.queue_file._LOOK_S", 600.0)
    sessions: list[File] = []
    begin = QueueFile.begin

    def counted(queue: QueueFile, file: File) -> Session:
        sessions.append(file)
        return begin(queue, file)

    monkeypatch.setattr(QueueFile, "begin", counted)
    for number in range(4, 38, 2):
        for shift, q in enumerate(queues):
            claim = q.take()
            assert claim is not None
            assert claim.message.value == str(number + shift)
            assert claim.done()
    assert not sessions


def test_what_another_worker_claims_during_a_wait_is_not_claimed_twice(
    queues: tuple[TextQueue, TextQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = queues
    lock = OS.open(one._inputs.sources[0].file.guard.path, "edit")
    assert lock.lock()
    claims = []

    def sleep(_: float) -> None:
        lock.unlock()
        monkeypatch.undo()
        claims.append(other.take())

    monkeypatch.setattr("textqueue.editing.quick.time.sleep", sleep)
    claims.append(one.take())
    lock.close()
    assert [claim and claim.message.value for claim in claims] == ["4", "5"]
    assert all(claim is not None and claim.done() for claim in claims)
    assert not one.conflicts + other.conflicts
