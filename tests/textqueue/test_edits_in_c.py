"""An edit in one call into C does what a session does, or leaves it to one."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sej.system.disk import OS, OsDisk
from sej.system.locks import replace_leased
from tests.textqueue.claiming import MUTEX, got, plain, taken
from textqueue import TextQueue
from textqueue.log import STATE, Ledger

pytestmark = pytest.mark.both_codecs
State = tuple[int, int, int]


def history(folder: Path, disk: OsDisk, clock: float) -> tuple[bytes, list[tuple[int, int, int, bytes]]]:
    """Edit a file in many ways; return its content, and the lines of its ledger without its states."""
    path = folder / "jobs.tq"
    path.write_bytes(b"# head\n" + b"".join(b"-job %d\n\\v=   \n\\%s\n" % (n, MUTEX.encode()) for n in range(9)))
    os.utime(path, (clock, clock))
    with TextQueue(path, disk=disk) as q:
        for number in range(3):
            message = got(q)
            message["v"] = str(number)
            message.mark_as_critical_error() if number else message.mark_as_cleared()
        for end in ("done", "failed", "give_back", "give_up", "done"):
            claim = taken(q, lease_s=600 if end == "done" else None)
            claim.message["v"] = end[:2]
            assert claim.extend(900)
            assert getattr(claim, end)()
        assert q.conflicts == []
    ledger = Ledger(str(folder / ".jobs.tq.log"), disk=OS)
    ledger.refresh()
    lines = [(*one[:4], one.detail.partition(b"+")[0]) for one in ledger.history() if one.kind != STATE]
    ledger.close()
    return path.read_bytes(), lines  # type: ignore[return-value]


def test_both_ways_write_the_same(tmp_path: Path) -> None:
    found = []
    for name, disk in (("c", OS), ("python", OsDisk())):
        (tmp_path / name).mkdir()
        found.append(history(tmp_path / name, disk, 1e9))
    assert found[0] == found[1]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    assert replace_leased is not None
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n-b\n-c\n")
    return path


def state(path: Path) -> State:
    there = path.stat()
    return there.st_ino, there.st_size, there.st_mtime_ns


def replaced(path: Path, before: State, *parts: tuple[int, bytes, bytes]) -> State | None:
    found: State | None = replace_leased(str(path), before, list(parts), b" \\")
    return found


def test_parts_are_replaced_together(path: Path) -> None:
    """The tests of other modules rely on it, too, that the kernel grants leases here."""
    after = replaced(path, state(path), (2, b"\n-b\n", b"\n=b\n"), (0, b"-a", b"!A"))
    assert path.read_bytes() == b"!A\n=b\n-c\n"
    assert after == state(path)


@pytest.mark.parametrize(
    "parts",
    [
        [(2, b"\n-x\n", b"\n=x\n")],
        [(3, b"-b\n", b"=b\n"), (0, b"-x", b"=x")],
        [(8, b"\n-d\n", b"\n=d\n")],
        [(3, b"-b\n", b"longer\n")],
        [(0, b"-" * 5000, b"=" * 5000)],
        [(0, b"-", b"="), (3, b"-", b"="), (6, b"-", b"=")],
    ],
    ids=["other bytes", "one is other", "past the end", "another length", "too large", "too many"],
)
def test_nothing_is_replaced_if_a_part_does_not_fit(path: Path, parts: list[tuple[int, bytes, bytes]]) -> None:
    before = state(path)
    assert replaced(path, before, *parts) is None
    assert path.read_bytes() == b"-a\n-b\n-c\n"


@pytest.mark.parametrize(("after", "fits"), [(b"", True), (b"-c\n", True), (b" more\n", False), (b"\\v=1\n", False)])
def test_nothing_is_replaced_in_a_message_that_has_grown(path: Path, after: bytes, fits: bool) -> None:
    path.write_bytes(b"-a\n-b\n" + after)
    assert (replaced(path, state(path), (2, b"\n-b\n", b"\n=b\n")) is not None) == fits
    assert path.read_bytes() == (b"-a\n=b\n" if fits else b"-a\n-b\n") + after


def test_nothing_is_replaced_in_another_state_or_kind_of_file(path: Path) -> None:
    part, (inode, size, mtime_ns) = (3, b"-b", b"=b"), state(path)
    for other in ((inode + 1, size, mtime_ns), (inode, size + 1, mtime_ns), (inode, size, mtime_ns + 1)):
        assert replaced(path, other, part) is None
    with path.open("rb"):  # no lease
        assert replaced(path, state(path), part) is None
    link = path.with_name("link")
    link.symlink_to(path)
    assert replaced(link, state(path), part) is None
    assert replaced(path.with_name("absent"), state(path), part) is None
    assert path.read_bytes() == b"-a\n-b\n-c\n"


def test_a_state_that_no_c_number_holds_leaves_the_edit_to_a_session(path: Path) -> None:
    """Some file systems have inodes from 2^63 on, and a time may be after 2262."""
    inode, size, mtime_ns = state(path)
    assert replaced(path, (inode + (1 << 63), size, mtime_ns), (2, b"\n-b\n", b"\n=b\n")) is None
    assert replaced(path, (inode, size, mtime_ns + (1 << 63)), (2, b"\n-b\n", b"\n=b\n")) is None


def test_a_child_forked_in_a_session_does_not_keep_the_file_lease(path: Path) -> None:
    """Editors would wait for it for 45 seconds."""
    with TextQueue(path) as q:
        got(q)
        with q._inputs.sources[0].file as session:
            assert session.alone
            with ThreadPoolExecutor() as pool:
                child = pool.submit(_forked).result()
        try:
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))  # raises BlockingIOError if a process has the lease
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_child_forked_while_another_thread_edits_does_not_keep_the_file(path: Path) -> None:
    """The edit keeps the interpreter's lock from the opening of the file to its end."""
    ends = threading.Event()

    def edit() -> None:
        while not ends.is_set():
            assert replaced(path, state(path), (2, b"\n-b\n", b"\n-b\n"))

    with ThreadPoolExecutor(1) as pool:
        edits = pool.submit(edit)
        try:
            for _ in range(20):
                child = os.fork()
                if not child:
                    os._exit(str(path) in opened_files())
                assert os.waitpid(child, 0)[1] == 0
        finally:
            ends.set()
        edits.result()


def opened_files() -> list[str]:
    """Return the paths of the files that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor of the list
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_a_child_forked_in_a_session_of_another_thread_edits(path: Path) -> None:
    with TextQueue(path) as q, ThreadPoolExecutor(1) as pool:
        message = got(q)
        session = q._inputs.sources[0].file
        pool.submit(q._threads.acquire).result()
        pool.submit(session.__enter__).result()
        child = os.fork()
        if not child:
            signal.alarm(20)
            message.mark_as_cleared()
            os._exit(q.take() is None)
        pool.submit(session.__exit__).result()
        pool.submit(q._threads.release).result()
        assert os.waitpid(child, 0)[1] == 0
    assert plain(path).startswith(b"=a\n")


def _forked() -> int:
    """Fork a child that only waits."""
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(1)
    return child
