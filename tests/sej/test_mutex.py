"""The mutex of a writer: the compiled one does what threading.RLock does."""

import os
import signal
import threading
from typing import Any

import pytest

from sej.mutex import Mutex

MUTEXES = [threading.RLock, Mutex]


@pytest.fixture(params=MUTEXES, ids=["python", "chosen"])
def mutex(request: pytest.FixtureRequest) -> Any:
    return request.param()


def taken_elsewhere(mutex: Any, **how: Any) -> bool:
    """Return whether another thread can take it, which gives it back."""
    found: list[bool] = []

    def take() -> None:
        found.append(mutex.acquire(**how))
        if found[0]:
            mutex.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join(60)
    return found[0]


def test_a_thread_takes_it_again(mutex: Any) -> None:
    assert not mutex._is_owned()
    with mutex:
        assert mutex.acquire()
        with mutex:
            assert mutex._is_owned()
            assert not taken_elsewhere(mutex, blocking=False)
        mutex.release()
        assert not taken_elsewhere(mutex, timeout=0.001)
    assert not mutex._is_owned()
    assert taken_elsewhere(mutex, blocking=False)
    assert taken_elsewhere(mutex, timeout=60)


def test_only_its_holder_releases_it(mutex: Any) -> None:
    with pytest.raises(RuntimeError):
        mutex.release()
    refused = threading.Event()

    def release() -> None:
        with pytest.raises(RuntimeError):
            mutex.release()
        refused.set()

    with mutex:
        thread = threading.Thread(target=release)
        thread.start()
        assert refused.wait(60)
        thread.join(60)
    with pytest.raises(ValueError):
        mutex.acquire(False, 1)
    with pytest.raises(ValueError):
        mutex.acquire(True, -2)


def test_one_thread_at_a_time(mutex: Any) -> None:
    inside, most, total = 0, 0, 0

    def work(number: int) -> None:
        nonlocal inside, most, total
        for turn in range(300):
            if (number + turn) % 3:
                mutex.acquire()
            else:
                while not mutex.acquire(timeout=0.0001):
                    pass
            inside += 1
            most = max(most, inside)
            if turn % 7 == 0:
                os.sched_yield()  # another thread may run
            with mutex:
                inside -= 1
                total += 1
            mutex.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, total) == (1, 6 * 300)
    assert mutex.acquire(blocking=False)


class WokenError(Exception):
    """What the handler raises."""


def test_a_signal_handler_ends_a_wait(mutex: Any) -> None:
    main = threading.get_ident()
    previous = signal.getsignal(signal.SIGUSR1)
    for turn in range(20):
        held, done, go = threading.Event(), threading.Event(), threading.Lock()

        def hold(held: threading.Event = held, done: threading.Event = done, go: threading.Lock = go) -> None:
            with go, mutex:
                held.set()
                signal.pthread_kill(main, signal.SIGUSR1)
                assert done.wait(60)

        def handle(*_: object, done: threading.Event = done, turn: int = turn) -> None:
            done.set()
            if turn % 2:
                with mutex:  # waits in the handler
                    pass
            raise WokenError

        signal.signal(signal.SIGUSR1, handle)
        thread = threading.Thread(target=hold)
        go.acquire()
        thread.start()  # it may be interrupted nowhere: what the handler raises there becomes a KeyError

        def wait(held: threading.Event = held, go: threading.Lock = go) -> None:
            go.release()
            held.wait(60)
            mutex.acquire()  # the handler runs before or in it: the thread holds the mutex until then

        try:
            with pytest.raises(WokenError):
                wait()
        finally:
            done.set()
            thread.join(60)
            signal.signal(signal.SIGUSR1, previous)
        assert not mutex._is_owned()
        assert taken_elsewhere(mutex, blocking=False)
