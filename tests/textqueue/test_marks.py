"""Marks in a row: lock and lease are kept from one mark to the next, and other processes wait only briefly."""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sej.system.disk import OS
from sej.system.locks import end_lease, lease
from tests.crash.disk import FaultyDisk
from tests.ticks import next_tick
from textqueue import Message, MessageStatus, NoSuchVariableError, TextQueue, hot
from textqueue.editing import hold, marks
from textqueue.editing.keeper import Keeper
from textqueue.format.windows import token_of
from textqueue.hot import reference as _hot_py
from textqueue.ledger.log import Ledger

ROOT = Path(__file__).parent.parent.parent
COUNT = 50
LINES = [b"-message %02d\n" % n for n in range(COUNT)]
LIMITS = marks._HOLD_S, marks._ROW_S
TICK = hold.Hold.tick


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"".join(LINES))
    return path


@pytest.fixture(params=["compiled", "reference"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run every test on both implementations."""
    if request.param == "reference":
        monkeypatch.setattr("textqueue.editing.hold.Held", _hot_py.Held)
        monkeypatch.setattr("textqueue.reading.cursor.ready", _hot_py.ready)
    elif hot.IMPLEMENTATION != "c":
        pytest.skip("no compiled twin here: tests/textqueue/test_hot.py says whether there should be one")
    return request.param


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits, so that a slow machine does not end a hold."""
    monkeypatch.setattr(marks, "_HOLD_S", 600.0)
    monkeypatch.setattr(marks, "_ROW_S", 600.0)
    monkeypatch.setattr(hold.Hold, "tick", lambda _, last=False: True)


def held(q: TextQueue) -> bool:
    source = q._inputs.sources[0]
    with source.file.threads:  # the keeper may be ending it
        return source.marks.hold is not None


def content(q: TextQueue) -> bytes:
    """Read through the hold, because opening the file would wait for the lease, for 45 seconds."""
    kept = q._inputs.sources[0].marks.hold
    assert kept is not None
    return kept.file.read(10_000, 0)


def begun(q: TextQueue) -> list[Message]:
    """Mark the first three messages, so that a hold begins, and return all messages."""
    found = list(q.messages())
    for message in found[:3]:
        message.mark_as_cleared()
    assert held(q)
    return found


def cleared(count: int, lines: list[bytes] = LINES) -> bytes:
    return b"".join(b"=" + line[1:] for line in lines[:count]) + b"".join(lines[count:])


def test_marks_in_a_row_are_in_the_file_and_in_the_ledger_when_they_return(path: Path) -> None:
    with TextQueue(path) as q:
        for number, message in enumerate(begun(q)[3:], 4):
            message.mark_as_cleared()
            assert content(q) == cleared(number)
            assert path.with_name(".jobs.tq.log").read_bytes().count(b"\n=") == number
    assert path.read_bytes() == cleared(COUNT)
    with TextQueue(path) as other:
        assert other.get_next() is None
        other.append("x")
        assert other.conflicts == []


def test_the_ledger_is_as_after_marks_one_by_one(path: Path, tmp_path: Path) -> None:
    second = tmp_path / "second.tq"
    second.write_bytes(path.read_bytes())
    with TextQueue(path) as q, TextQueue(second) as slow:
        begun(q)
        for message in list(slow.messages())[:3]:
            message.mark_as_cleared()
            slow._inputs.sources[0].marks.end()
        q._inputs.sources[0].marks.end()
        fast, one_by_one = (each._inputs.sources[0].file.ledger for each in (q, slow))
        assert [(m.kind, m.position, m.digest) for m in fast.edits()] == [
            (m.kind, m.position, m.digest) for m in one_by_one.edits()
        ]
        known = fast.lines, fast.token, fast._read_to, fast.last
        fast.close()
        fast.refresh()
        assert (fast.lines, fast.token, fast._read_to) == known[:3], "what was taken note of is what stands there"
        assert fast.last is not None
        assert known[3] is not None
        assert fast.last[:3] == known[3][:3]


def edit_elsewhere(path: Path, script: str) -> "subprocess.Popen[str]":
    head = f"import os, sys, time\npath = {str(path)!r}\nprint('ready', flush=True)\n"
    editor = subprocess.Popen([sys.executable, "-c", head + script], stdout=subprocess.PIPE, text=True)
    assert editor.stdout is not None
    assert editor.stdout.readline() == "ready\n"
    return editor


SAVE_IN_PLACE = """
data = open(path, 'rb').read()
open(path, 'wb').write(b'# a line above\\n' + data)
"""


def test_an_editor_gets_the_file_from_the_mark_that_notices_it(path: Path) -> None:
    with TextQueue(path) as q:
        messages = begun(q)
        with edit_elsewhere(path, SAVE_IN_PLACE) as editor:
            for message in messages[3:]:
                message.mark_as_cleared()
                if not held(q):
                    break
            q._inputs.sources[0].marks.end()  # if it came too late for that
            assert editor.wait() == 0
        for message in messages:
            if message.status.name == "queued":
                message.mark_as_cleared()
    assert path.read_bytes() == b"# a line above\n" + cleared(COUNT)
    assert not q.conflicts


def test_an_idle_worker_does_not_block_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begins = threading.Event()
    monkeypatch.setattr(hold.Hold, "tick", lambda one, last=False: begins.is_set() and TICK(one, last=last))
    with TextQueue(path) as q:
        messages = begun(q)
        begins.set()
        assert path.read_bytes() == cleared(3), "this waits for the keeper, and for nothing else"
        assert not held(q)
        messages[3].mark_as_cleared()
    assert path.read_bytes() == cleared(4)


def test_after_a_rename_into_place_the_next_mark_is_in_the_new_file(path: Path) -> None:
    with TextQueue(path) as q:
        messages = begun(q)
        new = path.with_name("new")
        new.write_bytes(b"-first\n" + cleared(3))
        new.replace(path)
        messages[3].mark_as_cleared()
        assert content(q) == b"-first\n" + cleared(4)
        messages[4].mark_as_cleared()
        messages[5].mark_as_cleared()
    assert path.read_bytes() == b"-first\n" + cleared(6)
    assert q.conflicts == []


def test_a_stale_buffer_renamed_into_place_is_found(path: Path) -> None:
    with TextQueue(path) as q:
        messages = begun(q)
        messages[3].mark_as_cleared()
        new = path.with_name("new")
        new.write_bytes(b"-first\n" + cleared(1))
        new.replace(path)
        messages[4].mark_as_cleared()
        assert [conflict.text for conflict in q.conflicts] == ["message 01", "message 02", "message 03"]
    assert path.read_bytes() == b"-first\n" + cleared(5)


def test_two_queues_in_one_thread_take_turns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "_HOLD_S", LIMITS[0])
    monkeypatch.setattr(marks, "_ROW_S", LIMITS[1])
    monkeypatch.setattr(hold.Hold, "tick", TICK)
    with TextQueue(path) as one, TextQueue(path) as two:
        first, second = list(one.messages()), list(two.messages())
        for number in range(COUNT):
            (first if number // 5 % 2 else second)[number].mark_as_cleared()
        assert one.conflicts == two.conflicts == []
    assert path.read_bytes() == cleared(COUNT)


def test_threads_share_a_queue(path: Path) -> None:
    with TextQueue(path) as q:
        messages = begun(q)[3:]

        def work(part: list[Message]) -> None:
            for message in part:
                message.mark_as_cleared()

        threads = [threading.Thread(target=work, args=(messages[start::3],)) for start in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert path.read_bytes() == cleared(COUNT)


def test_every_other_operation_ends_a_hold(path: Path, tmp_path: Path) -> None:
    with TextQueue(path) as q:
        *_, last = begun(q)
        operations: list[Callable[[], object]] = [
            lambda: q.append("new"),
            lambda: next(q.messages()),
            lambda: q.get_next(),
            lambda: q.mark_many([last], last.status),
            lambda: q.archive(tmp_path / "done.tq"),
        ]
        for operation in operations:
            operation()
            assert not held(q)
            for message in list(q.messages())[:2]:
                message.mark_as_cleared()
            assert held(q)
        with q.claim() as m:
            assert m is not None
            assert not held(q)
        begun_again = list(q.messages())[:2]
        for message in begun_again:
            message.mark_as_cleared()
        assert held(q)
    assert not held(q)
    assert q.conflicts == []


def test_no_hold_begins_while_messages_are_claimed(path: Path) -> None:
    with TextQueue(path) as q, TextQueue(path) as other:
        claim = other.take()
        assert claim is not None
        for message in list(q.messages())[1:6]:
            message.mark_as_cleared()
        assert not held(q)
        assert claim.done()
    assert path.read_bytes() == cleared(6)


def test_a_forked_child_leaves_the_hold_to_its_parent(path: Path) -> None:
    with TextQueue(path) as q:
        messages = begun(q)
        pid = os.fork()
        if not pid:
            try:
                # The child waits for its parent like any other process.
                messages[COUNT - 1].mark_as_critical_error()
                os._exit(0 if not q.conflicts else 2)
            except BaseException:
                os._exit(1)
        messages[3].mark_as_cleared()
        q._inputs.sources[0].marks.end()
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        for message in messages[4:-1]:
            message.mark_as_cleared()
        assert q.conflicts == []
    assert path.read_bytes() == cleared(COUNT - 1)[: -len(LINES[-1])] + b"!" + LINES[-1][1:]


def test_an_attempt_is_logged_at_the_end_of_a_hold(path: Path) -> None:
    path.write_bytes(b"".join(line + b"\\retries=9\n" for line in LINES))
    with TextQueue(path) as q:
        messages = begun(q)
        ledger = path.with_name(".jobs.tq.log")
        before = ledger.read_bytes()
        messages[3]["retries"] = "8"
        messages[4]["retries"] = "8"
        assert held(q)
        assert ledger.read_bytes() == before
        messages[5].mark_as_cleared()
        assert [line[:1] for line in ledger.read_bytes()[len(before) :].splitlines()] == [b"v", b"v", b"="]
        messages[6]["retries"] = "8"
        q._inputs.sources[0].marks.end()
        assert [line[:1] for line in ledger.read_bytes()[len(before) :].splitlines()] == [b"v", b"v", b"=", b"v", b"r"]
        assert path.read_bytes().count(b"retries=8") == 3


@pytest.mark.parametrize("end", ["kill", "full disk", "full disk, then a mark"])
def test_a_sync_after_lines_of_a_hold_were_lost_makes_everything_durable(path: Path, end: str) -> None:
    """The lines say which messages the sync has to write again. Without them it writes the whole file."""
    path.write_bytes(b"".join(line + b"\\retries=9\n" for line in LINES))
    disk = FaultyDisk(OS, 10_000, "enospc")
    with TextQueue(path) as q:
        next(q.messages()).mark_as_cleared()
        q.sync()
    if end == "kill":
        edit = 'next_tick(Path(sys.argv[1]))\n    message["retries"] = "8"'
        code = DIE_HOLDING.replace("message.mark_as_cleared()", edit)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", code, str(path), str(int(signal.SIGKILL))], env=env, check=False)
    else:
        with TextQueue(path, disk=disk) as q:
            messages = begun(q)
            next_tick(path)  # after the newest line in the ledger
            for message in messages[3:10]:
                message["retries"] = "8"
            assert held(q)
            disk.fail_at = disk.calls + (1 if end == "full disk" else 2)
            do = q._inputs.sources[0].marks.end if end == "full disk" else messages[10].mark_as_cleared
            with pytest.raises(OSError, match="space"):
                do()
            assert disk.failed == "write"
    with TextQueue(path) as q:
        source = q._inputs.sources[0]
        with source.file.session() as session:
            token = token_of(session.status)
            doubt = source._durable.doubt(session.file, token, source.file.ledger, known=session.known)
        assert (list(doubt.spans), doubt.ours) == ([(0, path.stat().st_size)], False)
        q.sync()
        assert q.conflicts == []


DIE_HOLDING = """
import os, sys
from pathlib import Path
from tests.ticks import next_tick
from textqueue import TextQueue
from textqueue.editing import hold, marks
marks._HOLD_S = marks._ROW_S = 600.0
hold.Hold.tick = lambda self, last=False: True
q = TextQueue(sys.argv[1])
for message in list(q.messages())[:10]:
    message.mark_as_cleared()
assert q._inputs.sources[0].marks.hold is not None
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize("stale", [False, True])
def test_a_process_that_dies_holding_loses_nothing(path: Path, stale: bool) -> None:
    buffer = path.read_bytes()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run(
        [sys.executable, "-c", DIE_HOLDING, str(path), str(int(signal.SIGKILL))], env=env, check=False
    )
    assert died.returncode == -signal.SIGKILL
    assert path.read_bytes() == cleared(10)
    if stale:
        path.write_bytes(b"# above\n" + buffer)
    with TextQueue(path) as q:
        m = q.get_next()
        assert m is not None
        assert m.value == "message 10"
        assert len(q.conflicts) == (10 if stale else 0)
    assert path.read_bytes() == (b"# above\n" if stale else b"") + cleared(10)


@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_failed_write_is_an_error_and_later_marks_succeed(path: Path, fail_at: int) -> None:
    disk = FaultyDisk(OS, 10_000, "enospc")
    with TextQueue(path, disk=disk) as q:
        messages = begun(q)
        disk.fail_at = disk.calls + fail_at
        failed = 0
        for message in messages[3:10]:
            try:
                message.mark_as_cleared()
            except OSError:
                failed += 1
                message.mark_as_cleared()
        assert failed == 1
        assert disk.failed in ("write_at", "write")
        assert q.conflicts == []
    assert path.read_bytes() == cleared(10)


def test_after_a_lost_lease_the_ledger_has_no_end_of_the_hold(path: Path) -> None:
    """The lease ends, as after the lease time of the system while this process was stopped."""
    with TextQueue(path) as q:
        messages = begun(q)
        kept = q._inputs.sources[0].marks.hold
        assert kept is not None
        assert end_lease(kept.file)
        path.write_bytes(b"# somebody came\n" + cleared(1))
        messages[3].mark_as_cleared()
        assert [conflict.text for conflict in q.conflicts] == ["message 01", "message 02"]
    assert path.read_bytes() == b"# somebody came\n" + cleared(4)


def test_a_lease_also_excludes_its_own_process(path: Path) -> None:
    """All holds rely on this."""
    file = OS.open(path, "edit")
    assert lease(file)
    with pytest.raises(BlockingIOError):
        os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    file.close()
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


class Broken:
    """A hold that fails to end."""

    def __init__(self) -> None:
        self.ticked = threading.Event()

    def tick(self, *, last: bool = False) -> bool:
        self.ticked.set()
        raise OSError("no")

    def forget(self) -> None:
        pass


def test_the_keeper_survives_a_hold_that_fails_to_end() -> None:
    keeper = Keeper()
    for _ in range(3):
        one = Broken()
        keeper.add(one)
        assert one.ticked.wait(60)


def test_the_end_of_a_process_ends_its_holds(path: Path) -> None:
    ends = (
        "import sys\nfrom textqueue import TextQueue\nfrom textqueue.editing import keeper, marks\n"
        "marks._HOLD_S = marks._ROW_S = keeper.TICK_S = 600.0\n"
        "q = TextQueue(sys.argv[1])\n"
        "for message in list(q.messages())[:10]: message.mark_as_cleared()\n"
        "assert q._inputs.sources[0].marks.hold is not None\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", ends, str(path)], env=env, check=True)
    last = path.with_name(".jobs.tq.log").read_bytes().splitlines()[-1].split(b" ")
    assert last[0] == b"r"
    assert int(last[5]) == path.stat().st_mtime_ns


def test_a_queue_that_is_garbage_collected_ends_its_hold(path: Path) -> None:
    def use() -> None:
        q = TextQueue(path)
        first, second, third = list(q.messages())[:3]
        first.mark_as_cleared()
        second.mark_as_cleared()
        third.mark_as_cleared()
        assert held(q)
        q._inputs.sources[0].marks.end()

    before = os.listdir("/proc/self/fd")
    gc.disable()
    try:
        use()
        assert len(os.listdir("/proc/self/fd")) == len(before)
    finally:
        gc.enable()


def test_variables_are_set_within_a_hold_between_marks(path: Path) -> None:
    path.write_bytes(b"".join(line + b"\\step=  \n" for line in LINES))
    with TextQueue(path) as q:
        messages = begun(q)
        for message in messages[3:6]:
            message["step"] = "1"
            message.mark_as_cleared()
        messages[6]["step"] = "2"
        with pytest.raises(NoSuchVariableError):
            messages[7].set_variable(3, "x")
        stale = content(q)
        messages[7]["step"] = "3"
        messages[7].mark_as_cleared()
        q._inputs.sources[0].marks.end()
        assert path.read_bytes().startswith(b"=message 00\n\\step=  \n")
        assert path.read_bytes().count(b"\n=") == 6
        assert path.read_bytes().count(b"step=1 ") == 3
        assert not q.conflicts
        path.write_bytes(b"# a stale save\n" + stale)
        assert [m.value for m in q.messages()][:2] == ["message 06", "message 08"]
        assert [c.kind for c in q.conflicts] == ["reverted"]


@pytest.mark.parametrize("end", ["mark", "variable"])
def test_after_a_hold_this_object_knows_the_same_as_one_that_reads_the_ledger(path: Path, end: str) -> None:
    path.write_bytes(b"".join(line + b"\\step=  \n" for line in LINES))
    with TextQueue(path) as q:
        messages = begun(q)
        for message in messages[3:6]:
            message["step"] = "1"
            message.mark_as_cleared()
        if end == "variable":
            messages[6]["step"] = "2"
        assert held(q)
        q._inputs.sources[0].marks.end()
        ours = q._inputs.sources[0].file.ledger
        other = Ledger(ours.path, disk=OS)
        other.refresh(look=True)
        assert ours.last is not None
        assert ours.last.kind == ord("v" if end == "variable" else "=")
        assert (ours.last.position, ours.last.digest) == (other.last and other.last[1:3])
        assert (ours.shown, ours.token, ours.lines) == (other.shown, other.token, other.lines)
        other.close()


def test_a_variable_has_the_same_line_in_the_ledger_however_it_is_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b"-\xc3\xa9\n\\step=   \n\\mutex=   \r\n=b\n\\step=   \n-c\n\\x")
    second = path.with_name("second.tq")
    second.write_bytes(path.read_bytes())

    def edited(path: Path) -> list[tuple[int, int, bytes, bytes]]:
        with TextQueue(path, settle_s=0) as q:
            first, done, last = list(q.messages(set(MessageStatus)))
            first.set_variable(-2, "step=1")
            first.set_variable(0, "step=22")
            first.set_variable(1, "mutex=1")
            done["step"] = "\u00e9"
            last.set_variable(0, "y")
            with pytest.raises(NoSuchVariableError):
                last.set_variable(1, "y")
            ledger = q._inputs.sources[0].file.ledger
            return [(r.kind, r.position, r.digest, r.owner) for r in ledger.history() if r.kind != ord("r")]

    quickly = edited(path)
    monkeypatch.setattr(marks.Marks, "variable", lambda *_: False)
    assert edited(second) == quickly
    assert len(quickly) == 5
    assert path.read_bytes() == second.read_bytes()
    assert path.read_bytes() == b"-\xc3\xa9\n\\step=22 \n\\mutex=1  \r\n=b\n\\step=\xc3\xa9 \n-c\n\\y"
