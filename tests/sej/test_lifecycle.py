"""The states of an object that holds files and locks, and the ways from one to the next."""

import os
import threading
from collections.abc import Callable

import pytest

import sej
from sej import mutex
from sej.system.lifecycle import Lifecycle
from tests.sej.hooks import Worker, until
from tests.sej.interrupts import Interrupt


class Owner:
    """Something to close: counts what is called."""

    def __init__(self) -> None:
        self.life = Lifecycle("the owner", "somewhere", self.worded)
        self.finished = self.released = 0
        self.at_finish: Callable[[], object] = lambda: None
        self.at_release: Callable[[], object] = lambda: None

    def worded(self, cause: BaseException) -> sej.SejError:
        return sej.WriterFailedError(f"it failed: {cause}", path="somewhere")

    def finish(self) -> None:
        self.finished += 1
        self.at_finish()

    def release(self) -> None:
        self.released += 1
        self.at_release()

    def close(self) -> None:
        self.life.close(self.finish, self.release)


def raising(*errors: BaseException) -> Callable[[], object]:
    left = list(errors)

    def act() -> None:
        if left:
            raise left.pop(0)

    return act


def test_an_open_object_is_finished_and_released_once() -> None:
    one = Owner()
    one.life.require()
    one.close()
    one.close()
    assert (one.finished, one.released, one.life.closed, one.life.open) == (1, 1, True, False)
    with pytest.raises(sej.ClosedError, match="the owner is closed"):
        one.life.require()


def test_a_failed_object_raises_its_failure_and_is_released_without_being_finished() -> None:
    one = Owner()
    assert one.life.fail(OSError("the first"))
    assert not one.life.fail(OSError("the second"))
    for _ in range(2):
        with pytest.raises(sej.WriterFailedError, match="it failed: the first"):
            one.life.require()
    one.close()
    assert (one.finished, one.released, one.life.closed) == (0, 1, True)
    with pytest.raises(sej.WriterFailedError, match="it failed: the first"):
        one.life.require()


def test_a_lost_lock_is_raised_as_one_with_its_place() -> None:
    one = Owner()
    one.life.fail(sej.LockLostError("it is gone", path="jnl.lck", position=7, offset=3))
    with pytest.raises(sej.LockLostError, match="it is gone") as raised:
        one.life.require()
    assert (raised.value.path, raised.value.position, raised.value.offset) == ("jnl.lck", 7, 3)


@pytest.mark.parametrize("seen", [False, True])
def test_a_failure_in_the_background_is_raised_once(seen: bool) -> None:
    one = Owner()
    one.life.fail(OSError("a sync"))
    one.life.leave_unreported()
    if seen:
        with pytest.raises(sej.WriterFailedError):
            one.life.require()
    else:
        with pytest.raises(sej.WriterFailedError, match="a sync"):
            one.close()
    one.close()
    assert one.released == 1


def test_the_error_of_a_block_is_not_replaced_by_one_of_the_background() -> None:
    one = Owner()
    one.life.fail(OSError("a sync"))
    one.life.leave_unreported()
    one.life.exit(one.close, KeyError)
    assert one.released == 1


@pytest.mark.parametrize("error", [sej.LockLostError("gone"), OSError(5, "Input/output error")])
def test_a_finish_that_fails_releases_all_the_same(error: Exception) -> None:
    one = Owner()
    one.at_finish = raising(error)
    with pytest.raises(type(error)):
        one.close()
    one.close()
    assert (one.finished, one.released, one.life.closed) == (1, 1, True)


@pytest.mark.parametrize("error", [Interrupt(), TimeoutError(), ValueError()])
def test_a_finish_that_is_interrupted_is_repeated_by_the_next_close(error: BaseException) -> None:
    one = Owner()
    one.at_finish = raising(error)
    with pytest.raises(type(error)):
        one.close()
    assert one.life.open and one.released == 0
    one.close()
    assert (one.finished, one.released, one.life.closed) == (2, 1, True)


def test_a_release_that_is_interrupted_is_repeated_by_the_next_close() -> None:
    one = Owner()
    one.at_release = raising(Interrupt())
    with pytest.raises(Interrupt):
        one.close()
    assert one.life.closed
    one.close()
    one.close()
    assert (one.finished, one.released) == (1, 2)


def test_at_the_end_of_a_block_an_interrupted_close_is_repeated() -> None:
    one = Owner()
    one.at_finish = raising(Interrupt())
    with pytest.raises(Interrupt):
        one.life.exit(one.close, None)
    assert (one.finished, one.released, one.life.closed) == (2, 1, True)


def test_a_handler_within_a_call_is_refused() -> None:
    one = Owner()
    with one.life.mutex:
        assert one.life.inside
        with pytest.raises(sej.LockedError, match="a call of the owner is under way in this thread"):
            one.life.require_outside()
        with pytest.raises(sej.LockedError):
            one.close()
    one.life.require_outside()
    assert one.finished == one.released == 0 and one.life.open


@pytest.mark.parametrize("step", ["at_finish", "at_release"])
def test_a_handler_within_close_is_refused(step: str) -> None:
    one = Owner()
    refused: list[str] = []

    def again() -> None:
        try:
            one.close()
        except sej.LockedError as error:
            refused.append(error.reason)

    setattr(one, step, again)
    one.close()
    assert len(refused) == 1 and (one.finished, one.released) == (1, 1)


def test_of_many_threads_that_close_one_does_and_the_others_wait() -> None:
    one, inside, on = Owner(), threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert on.wait(30)

    one.at_finish = wait

    def close() -> int:
        one.close()
        return one.released

    closing = [Worker(close)]
    until(inside.is_set)
    closing += [Worker(close) for _ in range(3)]
    on.set()
    assert [each.result() for each in closing] == [1] * 4 and one.finished == 1


def test_release_waits_for_a_call_of_another_thread() -> None:
    one, inside, on = Owner(), threading.Event(), threading.Event()
    seen: list[bool] = []

    def call() -> None:
        with one.life.mutex:
            one.life.require()
            inside.set()
            assert on.wait(30)
            seen.append(one.released == 0)

    calling = Worker(call)
    until(inside.is_set)
    one.life.fail(OSError("meanwhile"))
    closing = Worker(one.close)
    on.set()
    calling.result()
    closing.result()
    assert seen == [True] and one.released == 1


def test_an_object_that_was_closed_or_forgotten_is_not_told_about_forks() -> None:
    closed, kept, forgotten = Owner(), Owner(), Lifecycle("the owner", "somewhere")
    assert {found() for found in mutex._open} >= {closed.life, kept.life, forgotten}
    closed.close()
    entry = next(found for found in mutex._open if found() is forgotten)
    del forgotten
    assert entry not in mutex._open
    assert {found() for found in mutex._open} & {closed.life, kept.life} == {kept.life}
    kept.close()
    assert kept.life not in {found() for found in mutex._open}


def test_a_forked_child_is_refused_and_releases_nothing() -> None:
    one = Owner()
    copies: list[int] = []
    one.life.in_child = lambda: copies.append(1)
    with one.life.mutex:  # as another thread may hold it at the fork
        child = os.fork()
        if not child:
            try:
                one.close()
                good = one.life.forked and not one.life.inside and copies == [1] and one.released == 0
                try:
                    one.life.require()
                except sej.ClosedError as error:
                    good = good and "belongs to the parent process" in error.reason
                else:
                    good = False
                os._exit(0 if good else 1)
            finally:
                os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert one.life.open and not copies
    one.close()
    assert one.released == 1
