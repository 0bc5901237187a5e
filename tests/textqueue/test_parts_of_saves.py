"""What a worker does while the file has a part of a save, and what equal messages show about a save."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.textqueue.claiming import MUTEX, plain, rewrite, taken
from tests.textqueue.histories import steady
from textqueue import Claim, TextQueue

ROOM = b"\\mutex=" + b" " * 40 + b"\n"


@pytest.fixture(autouse=True)
def without_limits() -> Iterator[None]:
    with steady():
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.tq"


@contextmanager
def saving(path: Path, data: bytes, at: int) -> Iterator[None]:
    """An editor writes the file in two steps. The block runs between them."""
    with path.open("wb", buffering=0) as editor:
        editor.write(data[:at])
        yield
        editor.write(data[at:])


def take(q: TextQueue, text: str) -> Claim:
    claim = taken(q)
    assert claim.message.value.split("\n")[0] == text
    return claim


def finish(q: TextQueue, *texts: str) -> None:
    """Take and end the messages that are left."""
    for text in texts:
        assert take(q, text).done()
    assert q.take() is None


@pytest.mark.parametrize("end", [Claim.give_back, Claim.failed])
def test_a_worker_looks_while_the_file_is_empty(path: Path, end: Callable[[Claim], bool]) -> None:
    """The buffer has a claim that has ended. It does not count when the save is complete."""
    path.write_bytes(b"-a\n" + ROOM)
    with TextQueue(path) as q, TextQueue(path) as other:
        claim = take(q, "a")
        buffer = path.read_bytes()
        assert end(claim)
        with saving(path, buffer, 0):
            assert other.take() is None
        finish(other, "a")
    assert plain(path) == b"=a\n" + ROOM


@pytest.mark.parametrize("blanked", [False, True])
def test_an_editor_reads_a_part_of_a_claim(path: Path, blanked: bool) -> None:
    path.write_bytes(b"-a\n" + ROOM)
    with TextQueue(path) as q:
        claim = take(q, "a")
        mutex = path.read_bytes()
        at = mutex.index(b"@") + blanked
        assert claim.give_back()
        blank = path.read_bytes()
        path.write_bytes(mutex[:at] + blank[at:] if blanked else blank[:at] + mutex[at:])
        finish(q, "a")
    assert plain(path) == b"=a\n" + ROOM


def test_what_a_user_writes_into_a_mutex_counts(path: Path) -> None:
    path.write_bytes(b"-a\n" + ROOM)
    with TextQueue(path) as q:
        assert take(q, "a").give_back()
        path.write_bytes(path.read_bytes().replace(b"=      ", b"=mine  "))
        assert q.take() is None


@pytest.mark.parametrize("others", [b"", b"# a note\n"])
def test_a_save_removes_an_append_that_equals_the_message_before_it(path: Path, others: bytes) -> None:
    """That message does not show that the buffer is new."""
    path.write_bytes(b"-a\n-b\n")
    with TextQueue(path) as q:
        buffer = path.read_bytes()
        assert take(q, "a").done()
        q.append("b")
        path.write_bytes(buffer.replace(b"-b", others + b"-b"))
        finish(q, "b")
    assert plain(path) == b"=a\n" + others + b"=b\n"


def test_an_append_that_equals_the_message_before_it_shows_that_a_buffer_is_new(path: Path) -> None:
    path.write_bytes(b"-a\n-b\n")
    with TextQueue(path) as q:
        assert take(q, "a").done()
        q.append("b")
        path.write_bytes(b"# a note\n" + path.read_bytes().replace(b"=a", b"-a"))
        finish(q, "a", "b", "b")
        assert q.conflicts == []


@pytest.mark.parametrize("others", [b"-n\n\\x\n", b"-new\n"])
def test_a_save_reverts_the_newer_mark_of_two_equal_messages(path: Path, others: bytes) -> None:
    """The older one is where the newer one would be, if lines have moved by the growth of the file."""
    with TextQueue(path) as q:
        q.append_many(["a", "a"])
        assert take(q, "a").done()
        buffer = path.read_bytes()
        assert take(q, "a").done()
        q.append("p")
        path.write_bytes(others + buffer)
        finish(q, "n" if b"x" in others else "new")
    assert plain(path).endswith(b"=a\n=a\n")


@pytest.mark.parametrize("variables", [[], [MUTEX]])
def test_the_mark_of_an_equal_message_moves_to_the_place_of_a_claim(path: Path, variables: list[str]) -> None:
    """The claim remains: no other worker gets its message."""
    with TextQueue(path) as q, TextQueue(path) as other:
        q.append_many(["a", "a"], variables)
        assert take(q, "a").done()
        claim = take(q, "a")
        data = path.read_bytes()
        path.write_bytes(b"-" + b"x" * (len(data) // 2 - 2) + b"\n" + data + b"-more\n")
        take(other, "x" * (len(data) // 2 - 2))
        take(other, "more")
        assert other.take() is None
        assert claim.done()


def test_a_part_of_a_claim_is_saved_in_an_equal_message(path: Path) -> None:
    """The claim gets the message with a blank mutex, and the other one is free."""
    path.write_bytes(b"-a\n" + ROOM)
    with TextQueue(path) as q, TextQueue(path) as other:
        claim = take(q, "a")
        data = plain(path)
        at = data.index(b"@")
        rewrite(path, b"-a\n" + ROOM + data[:10] + b" " * (at - 10) + data[at:])
        finish(other, "a")
        assert claim.done()
    assert plain(path) == (b"=a\n" + ROOM) * 2
