"""What the tests of writers and readers do not show of the life of an object that holds files and locks."""

import threading
from collections.abc import Callable

import pytest

from sej import fork
from sej.errors import SejError, WriterFailedError
from sej.system.lifecycle import Lifecycle
from tests.sej.hooks import Worker, until
from tests.sej.interrupts import Interrupt


class Owner:
    """Something to close: counts what is called."""

    def __init__(self, at_finish: Callable[[], object] = lambda: None) -> None:
        self.life = Lifecycle("the owner", "somewhere", self)
        self.finished = self.released = 0
        self.at_finish = at_finish

    def _finish(self) -> None:
        self.finished += 1
        self.at_finish()

    def _release(self) -> None:
        self.released += 1

    def close(self) -> None:
        self.life.close()

    def _close_copies(self) -> None:
        pass

    def _reworded(self, cause: BaseException) -> SejError:
        return WriterFailedError(str(cause))


def test_at_the_end_of_a_block_an_interrupted_close_is_repeated() -> None:
    interrupts = [Interrupt()]

    def interrupt() -> None:
        if interrupts:
            raise interrupts.pop()

    one = Owner(interrupt)
    with pytest.raises(Interrupt):
        one.life.exit(None)
    assert (one.finished, one.released, one.life.closed) == (2, 1, True)


def test_of_many_threads_that_close_one_does_and_the_others_wait() -> None:
    inside, on = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert on.wait(30)

    one = Owner(wait)

    def close() -> int:
        one.close()
        return one.released

    closing = [Worker(close)]
    until(inside.is_set)
    closing += [Worker(close) for _ in range(3)]
    on.set()
    assert [each.result() for each in closing] == [1] * 4 and one.finished == 1


def test_an_object_that_was_closed_or_forgotten_is_not_told_about_forks() -> None:
    closed, kept, forgotten = Owner(), Owner(), Lifecycle("the owner", "somewhere", Owner())
    assert {found() for found in fork._open} >= {closed.life, kept.life, forgotten}
    closed.close()
    entry = next(found for found in fork._open if found() is forgotten)
    del forgotten
    assert entry not in fork._open
    assert {found() for found in fork._open} & {closed.life, kept.life} == {kept.life}
    kept.close()
    assert kept.life not in {found() for found in fork._open}
