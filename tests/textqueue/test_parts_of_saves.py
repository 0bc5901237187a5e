"""What a worker does while the file has a part of a save, and what equal messages show about a save."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.textqueue.claiming import plain, taken
from tests.textqueue.histories import steady
from textqueue import Claim, TextQueue

ROOM = b"\\mutex=" + b" " * 40 + b"\n"


@pytest.fixture(autouse=True)
def without_limits() -> Iterator[None]:
    with steady():
        yield


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
