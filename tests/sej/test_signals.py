"""Programs that a signal stops at any moment, also while the main thread holds the lock of the event that it sets."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from sej.queue.work import _until_signal
from sej.system.process import stop_on_signals, wait_for_signal
from tests.sej.hooks import PATIENCE_S, Worker, until

pytestmark = pytest.mark.both_codecs
NUMBERS = [signal.SIGTERM, signal.SIGINT]


@contextmanager
def by_command(_: threading.Event) -> Iterator[threading.Event]:
    before = [signal.getsignal(number) for number in NUMBERS]
    try:
        yield stop_on_signals()
    finally:
        for number, handler in zip(NUMBERS, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def by_work(stop: threading.Event) -> Iterator[threading.Event]:
    with _until_signal(stop):
        yield stop


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("waiting", [by_command, by_work])
def test_a_signal_while_the_main_thread_is_about_to_wait(
    waiting: Callable[[threading.Event], AbstractContextManager[threading.Event]], number: signal.Signals
) -> None:
    with waiting(threading.Event()) as stop:
        with getattr(stop, "_cond"):  # noqa: B009 - as in wait(); private
            signal.raise_signal(number)
        assert stop.wait(PATIENCE_S)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_that_another_thread_gets(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP: the main thread waits, and nothing wakes it to run the handler."""
    monkeypatch.setattr("sej.system.process._LOOK_S", 0.01)

    def get() -> None:
        until(lambda: bool(getattr(stop, "_cond")._waiters))  # noqa: B009 - the main thread waits; private
        signal.pthread_kill(threading.get_ident(), number)

    with by_command(threading.Event()) as stop:
        worker = Worker(get)
        wait_for_signal(stop)
        worker.result()
    assert stop.is_set()
