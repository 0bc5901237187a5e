"""The lock between programs: who pauses for how long."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sej.system.disk import OS
from textqueue.ledger import lock
from textqueue.ledger.lock import Guard
from textqueue.ledger.sidecar import Sidecars


class Pauses:
    """Replaces the sleeps of the lock, and ends the holder's operation after some of them."""

    def __init__(self, holder: Guard, count: int) -> None:
        self.found: list[float] = []
        self._holder = holder
        self._count = count

    def sleep(self, seconds: float) -> None:
        self.found.append(seconds)
        if len(self.found) == self._count:
            self._holder.__exit__()


@pytest.fixture
def asked() -> list[int]:
    return []


@pytest.fixture
def guards(tmp_path: Path, asked: list[int]) -> tuple[Guard, Guard]:
    sidecars = Sidecars(str(tmp_path / "jobs.tq"), disk=OS)
    one, other = (Guard(sidecars, disk=OS, ask=lambda: asked.append(1)) for _ in range(2))
    return one, other


def test_a_newcomer_tries_again_soon_and_then_asks_the_holder(
    guards: tuple[Guard, Guard], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, newcomer = guards
    holder.__enter__()
    pauses = Pauses(holder, 6)
    monkeypatch.setattr(time, "sleep", pauses.sleep)
    with newcomer:
        pass
    assert pauses.found == pytest.approx([0.000_05 * 2**n for n in range(6)])
    assert asked == [1]


def test_an_object_that_has_just_had_the_lock_lets_the_others_have_it(
    guards: tuple[Guard, Guard], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_TURN_S", 600.0)
    holder, other = guards
    with other:
        pass
    holder.__enter__()
    pauses = Pauses(holder, 1)
    monkeypatch.setattr(time, "sleep", pauses.sleep)
    with other:
        pass
    assert pauses.found == [600.0]
    assert asked == [], "the turn of the holder is not cut short"


class Time:
    """The clock of the lock. Each sleep moves it, and the holder may write or end its operation."""

    def __init__(self, then: Callable[[int], None]) -> None:
        self.now = 1024.0
        self.slept: list[float] = []
        self._then = then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)
        self._then(len(self.slept))


@pytest.mark.parametrize(("row", "writes", "expected"), [(8, 100, 5), (8, 2, 3), (8, 0, 2), (6, 100, 0)])
def test_a_row_of_operations_leaves_the_lock_while_the_others_write(
    guards: tuple[Guard, Guard],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    row: int,
    writes: int,
    expected: int,
) -> None:
    """The turn is five pauses long. It ends two pauses after the look before the last write of the others."""
    pause = 1 / 128  # sums of it are exact
    for name, pauses in (("_IDLE_PAUSE_S", 1), ("_IDLE_S", 2), ("_LONG_TURN_S", 5)):
        monkeypatch.setattr(lock, name, pauses * pause)
    holder, other = guards
    log = tmp_path / ".jobs.tq.log"
    log.touch()

    def then(count: int) -> None:
        if count <= writes:
            log.write_bytes(bytes(count))
        if count == max(expected, 1):
            holder.__exit__()

    clock = Time(then)
    monkeypatch.setattr(lock, "time", clock)
    for _ in range(row + 1):
        with other:
            pass
    holder.__enter__()
    with other:
        pass
    assert clock.slept == ([pause] * expected if expected else [lock._TURN_S])
