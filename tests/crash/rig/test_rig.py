"""A disk that fails, on a real file system: what was acknowledged is on the medium, whatever the cache says.

After a failed writeback the kernel keeps the page and marks it clean. So each fault here is followed by what makes that
dangerous: the same object is asked again, another one is opened, another process sees the error, or the process is
killed. Then the power is cut, and the medium is mounted elsewhere and compared with what was acknowledged.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.harness import seeded_random
from tests.crash.rig.machine import FILE_SYSTEMS
from tests.crash.rig.scenario import ALWAYS, Scenario
from tests.crash.rig.systems import SYSTEMS

pytestmark = [pytest.mark.torture, pytest.mark.rig, pytest.mark.timeout(3600)]
on_every_file_system = pytest.mark.parametrize("file_system", FILE_SYSTEMS)
MAX_STEPS = 12


def asked_again(s: Scenario) -> None:
    """The same object is used after the error."""
    s.fail()
    s.ask("again")
    s.work(3)
    s.ask("again")


def reopened(s: Scenario) -> None:
    """The object is closed and opened again, in the same process."""
    s.fail()
    s.must(s.reopen())
    s.must(s.work(4))


def restarted(s: Scenario) -> None:
    """The process is killed after the error, and the next one opens."""
    s.fail()
    s.kill()
    s.begin(4)


def opened_only(s: Scenario) -> None:
    """What the next process reports on opening is all that it does."""
    s.fail()
    s.kill()
    s.must(s.open())


def refused_twice(s: Scenario) -> None:
    """The disk still fails when the object is opened again."""
    s.begin()
    s.poison()
    if s.reopen() is None:
        s.work(2)
    s.kill()
    if s.open() is None:
        s.work(2)
    s.mend()
    s.kill()
    s.begin(4)


def evicted(s: Scenario) -> None:
    """The kernel forgets the page that was never written, under an object that has seen it."""
    s.fail()
    if s.reopen() is None:
        s.other("evict")
        s.work(4)


def flush_refused(s: Scenario) -> None:
    """The data reach the device, and its flush fails."""
    s.begin()
    s.refuse("flush 1 1")
    s.work(1)
    s.mend()
    s.ask("again")
    s.reopen()
    s.work(4)


def unplugged(s: Scenario) -> None:
    """Every write fails for a while, the file system's own too."""
    s.begin()
    s.refuse(f"writes {ALWAYS} 0 {ALWAYS}")
    s.work(3)
    s.mend()
    s.reopen()
    s.work(2)
    s.remount()
    s.begin(4)


def remounted(s: Scenario) -> None:
    """After the error and more work the file system is mounted again: the cache is gone."""
    s.fail()
    s.must(s.reopen())
    s.must(s.work(3))
    s.remount()
    s.begin(3)


def killed(s: Scenario) -> None:
    """The process is killed in the middle of its work."""
    s.must(s.open())
    s.kill_amid(s.dice.randrange(1, 30))


def killed_and_opened(s: Scenario) -> None:
    """The process is killed in the middle of its work, and the next one opens."""
    for _ in range(3):
        killed(s)
    s.must(s.open())


def another_sees(s: Scenario) -> None:
    s.begin(weak=True)
    s.poison()
    s.other("sync")
    s.mend()


def seen_by_another(s: Scenario) -> None:
    """Another process' sync gets the error, which the kernel reports once; then ours opens."""
    another_sees(s)
    s.kill()
    s.begin(4)


def seen_by_another_in_the_middle(s: Scenario) -> None:
    """Another process' sync gets the error while our object is open; then ours is opened again."""
    another_sees(s)
    s.work(1)
    s.reopen()
    s.work(4)


def rest_of_the_file_written(s: Scenario) -> None:
    """After the error the next process writes on, while the device refuses the old page again and again."""
    s.begin()
    s.poison()
    for _ in range(3):
        s.kill()
        if s.open() is None:
            s.work(3)
    s.mend()
    s.kill()
    s.must(s.open())


def opening_killed(s: Scenario) -> None:
    """After the error the next processes are killed while they open."""
    s.fail()
    for _ in range(3):
        s.kill_opening(s.dice.randrange(6))
    s.begin(4)


def power_lost_twice(s: Scenario) -> None:
    """After the error the power is cut, the next process works on, and the power is cut again."""
    s.fail()
    s.must(s.reopen())
    s.must(s.work(2))
    s.lose_power()
    s.begin(3)
    s.poison()
    s.mend()
    s.lose_power()
    s.begin(3)


Story = Callable[[Scenario], None]
STORIES: list[Story] = [
    asked_again,
    reopened,
    restarted,
    opened_only,
    refused_twice,
    evicted,
    flush_refused,
    unplugged,
    remounted,
    killed,
    killed_and_opened,
    seen_by_another,
    seen_by_another_in_the_middle,
    rest_of_the_file_written,
    opening_killed,
    power_lost_twice,
]


@on_every_file_system
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_was_acknowledged_is_on_the_medium(
    story: Story, system: str, file_system: str, device_program: Path
) -> None:
    with Scenario(file_system, device_program, system, seeded_random()) as s:
        story(s)
        s.judge()


@on_every_file_system
@pytest.mark.parametrize("system", ["shared-writer", "work-queue", "textqueue"])
def test_the_error_of_one_process_does_not_hide_from_its_neighbours(
    system: str, file_system: str, device_program: Path
) -> None:
    with Scenario(file_system, device_program, system, seeded_random()) as s:
        for s.who in (0, 1, 2):
            s.begin(2)
        s.poison()
        s.mend()
        for s.who in (0, 1, 2, 0, 1, 3):
            s.open() if s.who == 3 else None
            s.work(2)
        s.judge()


@on_every_file_system
@pytest.mark.parametrize("reader", ["writer", "shared-writer", "work-queue", "offset", "consumer"])
def test_the_next_process_syncs_what_a_killed_one_left(reader: str, file_system: str, device_program: Path) -> None:
    writer = reader if reader in ("shared-writer", "work-queue") else "writer"
    with Scenario(file_system, device_program, writer, seeded_random()) as s:
        s.must(s.open(weak=True))
        s.must(s.work(20))
        s.take_over(reader)
        if reader in ("offset", "consumer"):
            s.begin(1)
        else:
            s.must(s.open(weak=True))
            s.must(s.ask("found"))
        s.judge()


# Steps of random histories


def opens(s: Scenario) -> None:
    s.kill()
    s.open(weak=s.dice.random() < 0.2)


def works(s: Scenario) -> None:
    s.work(s.dice.randrange(1, 5))


def is_poisoned(s: Scenario) -> None:
    s.poison(s.dice.choice([1, 2, ALWAYS]))


def is_refused_writes(s: Scenario) -> None:
    s.refuse(f"writes {s.dice.choice([1, 1, 3, ALWAYS])} 0 {ALWAYS}")
    s.work(1)


def is_refused_a_flush(s: Scenario) -> None:
    s.refuse(f"flush {s.dice.randrange(1, 4)} {s.dice.choice([1, 1, 3])}")
    s.work(1)


def is_killed(s: Scenario) -> None:
    s.kill_amid(s.dice.randrange(1, 10))
    opens(s)


def is_killed_opening(s: Scenario) -> None:
    s.kill_opening(s.dice.randrange(8))
    opens(s)


def loses_power(s: Scenario) -> None:
    s.lose_power()
    s.open()


def is_mounted_again(s: Scenario) -> None:
    s.mend()
    s.remount()
    s.open()


STEPS: list[Callable[[Scenario], object]] = [
    *[opens, works, works, is_poisoned, is_poisoned, is_refused_writes, is_refused_a_flush],
    *[is_killed, is_mounted_again, is_killed_opening, loses_power, Scenario.mend, Scenario.mend],
    *[lambda s: s.other("sync"), lambda s: s.other("evict"), lambda s: s.ask("again"), lambda s: s.reopen()],
]


@on_every_file_system
def test_random_histories(file_system: str, device_program: Path, torture_s: float) -> None:
    dice = seeded_random()
    end = time.monotonic() + torture_s
    while time.monotonic() < end:
        system = dice.choice(list(SYSTEMS))
        with Scenario(file_system, device_program, system, dice) as s:
            s.open()
            s.work(2)
            for _ in range(dice.randrange(2, MAX_STEPS)):
                dice.choice(STEPS)(s)
            s.judge()
