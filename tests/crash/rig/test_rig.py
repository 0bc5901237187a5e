"""A disk that fails, on a real file system: what was acknowledged is on the medium, whatever the cache says.

After a failed writeback the kernel keeps the page and marks it clean. So each fault here is followed by what makes that
dangerous: the same object is asked again, another one is opened, another process sees the error, or the process is
killed. Then the power is cut, and the medium is mounted elsewhere and compared with what was acknowledged.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.crash.herd import chance
from tests.crash.rig.machine import FILE_SYSTEMS, Machine
from tests.crash.rig.scenario import ALWAYS, Scenario
from tests.crash.rig.systems import SYSTEMS

pytestmark = [pytest.mark.torture, pytest.mark.rig, pytest.mark.timeout(3600)]
on_every_file_system = pytest.mark.parametrize("file_system", FILE_SYSTEMS)
MAX_STEPS = 12


def asked_again(s: Scenario) -> None:
    """The same object is used after the error."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    s.mend()
    s.ask("again")
    s.work(3)
    s.ask("again")


def reopened(s: Scenario) -> None:
    """The object is closed and opened again, in the same process."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    s.mend()
    s.must(s.reopen())
    s.must(s.work(4))


def restarted(s: Scenario) -> None:
    """The process is killed after the error, and the next one opens."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    s.mend()
    s.kill()
    s.must(s.open())
    s.must(s.work(4))


def opened_only(s: Scenario) -> None:
    """What the next process reports on opening is all that it does."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    s.mend()
    s.kill()
    s.must(s.open())


def refused_twice(s: Scenario) -> None:
    """The disk still fails when the object is opened again."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    if s.reopen() is None:
        s.work(2)
    s.kill()
    if s.open() is None:
        s.work(2)
    s.mend()
    s.kill()
    s.must(s.open())
    s.must(s.work(4))


def evicted(s: Scenario) -> None:
    """The kernel forgets the page that was never written, under an object that has seen it."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    s.mend()
    if s.reopen() is None:
        s.other("evict")
        s.work(4)


def flush_refused(s: Scenario) -> None:
    """The data reach the device, and its flush fails."""
    s.must(s.open())
    s.must(s.work(5))
    s.refuse("flush 1 1")
    s.work(1)
    s.mend()
    s.ask("again")
    s.reopen()
    s.work(4)


def unplugged(s: Scenario) -> None:
    """Every write fails for a while, the file system's own too."""
    s.must(s.open())
    s.must(s.work(5))
    s.refuse(f"writes {ALWAYS} 0 {ALWAYS}")
    s.work(3)
    s.mend()
    s.reopen()
    s.work(2)
    s.remount()
    s.must(s.open())
    s.must(s.work(4))


def remounted(s: Scenario) -> None:
    """After the error and more work the file system is mounted again: the cache is gone."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    s.mend()
    s.must(s.reopen())
    s.must(s.work(3))
    s.remount()
    s.must(s.open())
    s.must(s.work(3))


def killed(s: Scenario) -> None:
    """The process is killed in the middle of its work."""
    s.must(s.open())
    s.kill_amid(s.dice.randrange(1, 30))


def killed_and_opened(s: Scenario) -> None:
    """The process is killed in the middle of its work, and the next one opens."""
    for _ in range(3):
        s.must(s.open())
        s.kill_amid(s.dice.randrange(1, 30))
    s.must(s.open())


def seen_by_another(s: Scenario) -> None:
    """Another process' sync gets the error, which the kernel reports once; then ours opens."""
    s.must(s.open(weak=True))
    s.must(s.work(5))
    s.poison()
    s.other("sync")
    s.mend()
    s.kill()
    s.must(s.open())
    s.must(s.work(4))


def seen_by_another_in_the_middle(s: Scenario) -> None:
    """Another process' sync gets the error while our object is open; then ours is opened again."""
    s.must(s.open(weak=True))
    s.must(s.work(5))
    s.poison()
    s.other("sync")
    s.mend()
    s.work(1)
    s.reopen()
    s.work(4)


def rest_of_the_file_written(s: Scenario) -> None:
    """After the error the next process writes on, while the device refuses the old page again and again."""
    s.must(s.open())
    s.must(s.work(5))
    s.poison()
    for _ in range(3):
        s.kill()
        if s.open() is None:
            s.work(3)
    s.mend()
    s.kill()
    s.must(s.open())


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
]


@on_every_file_system
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_was_acknowledged_is_on_the_medium(
    story: Story, system: str, file_system: str, device_program: Path
) -> None:
    with Machine(file_system, device_program) as machine, Scenario(machine, system, chance()) as s:
        story(s)
        s.cut()


@on_every_file_system
@pytest.mark.parametrize("reader", ["writer", "shared-writer", "work-queue", "offset", "consumer"])
def test_the_next_process_syncs_what_a_killed_one_left(reader: str, file_system: str, device_program: Path) -> None:
    writer = "shared-writer" if reader == "shared-writer" else "writer"
    writer = "work-queue" if reader == "work-queue" else writer
    with ExitStack() as stack:
        machine = stack.enter_context(Machine(file_system, device_program))
        dice = chance()
        first = stack.enter_context(Scenario(machine, writer, dice))
        first.must(first.open(weak=True))
        first.must(first.work(40))
        first.kill()
        second = stack.enter_context(Scenario(machine, reader, dice))
        second.take_over(first)
        if reader in ("offset", "consumer"):
            second.must(second.open())
            second.must(second.work(1))
        else:
            second.must(second.open(weak=True))
            second.must(second.ask("found"))
        second.cut()


def opens(s: Scenario) -> None:
    s.kill()
    s.open(weak=s.dice.random() < 0.2)


def opens_again(s: Scenario) -> None:
    s.reopen()


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


def is_mended(s: Scenario) -> None:
    s.mend()


def is_killed(s: Scenario) -> None:
    s.kill_amid(s.dice.randrange(1, 10))
    opens(s)


def another_syncs(s: Scenario) -> None:
    s.other("sync")


def the_kernel_forgets(s: Scenario) -> None:
    s.other("evict")


def asks_again(s: Scenario) -> None:
    s.ask("again")


def is_mounted_again(s: Scenario) -> None:
    s.mend()
    s.remount()
    s.open()


STEPS: list[Callable[[Scenario], None]] = [
    *[opens, opens_again, works, works, is_poisoned, is_poisoned, is_refused_writes, is_refused_a_flush],
    *[is_mended, is_mended, is_killed, another_syncs, the_kernel_forgets, asks_again, is_mounted_again],
]


@on_every_file_system
def test_random_histories(file_system: str, device_program: Path, torture_s: float) -> None:
    dice = chance()
    end = time.monotonic() + torture_s
    while time.monotonic() < end:
        system = dice.choice(list(SYSTEMS))
        with Machine(file_system, device_program) as machine, Scenario(machine, system, dice) as s:
            s.open()
            s.work(2)
            for _ in range(dice.randrange(2, MAX_STEPS)):
                dice.choice(STEPS)(s)
            s.cut()
