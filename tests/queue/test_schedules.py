"""Schedules: one item for each time, whatever dies, and whatever the clocks do."""

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import sej
from sej.queue.interface.values import MISSED
from sej.queue.journal_queue import JournalQueue
from tests.cli.inside import inside
from tests.crash.disk import CrashDisk
from tests.queue.support import (
    FAKETIME,
    NS,
    DiedError,
    FakeClock,
    crashes,
    dies_before_the_message,
    dying,
    failing,
    kill,
    opened,
    take,
)
from tests.sej.hooks import until

DAY = 86_400
PATH = "/q"


def at_of(item: sej.Item) -> int:
    """Return the time that an item is for."""
    return int(datetime.fromisoformat(item.headers["schedule-time"]).timestamp() * NS)


def made(q: sej.WorkQueue) -> list[tuple[str, int]]:
    """Take and end all items; return the schedule and the time of each."""
    found = []
    while items := [*q.get_many(500, timeout=0), *q.get_many(500, timeout=0)]:
        found += [(item.headers["schedule"], at_of(item)) for item in items]
        q.done_many(items)
    return found


@pytest.fixture
def q(tmp_path: Path, clock: FakeClock) -> Iterator[JournalQueue]:
    with opened(tmp_path, clock) as queue:
        yield queue


def test_its_items_are_ordinary_ones(q: JournalQueue, clock: FakeClock) -> None:
    first = q.put(b"report", b"key", every="15m", schedule="reports", priority=2, headers={"a": "b"}, keep_result="1h")
    assert first == clock.wall + 900 * NS
    q.put(b"other")
    assert q.get_many(9, timeout=0)[0].value == b"other"
    clock.move(900)
    item = take(q)
    assert (item.value, item.key, item.attempts) == (b"report", b"key", 1)
    assert item.headers == {"a": "b", "schedule": "reports", "schedule-time": "2023-11-14T22:28:20Z"}
    assert q.items()[-1].priority == 2
    item.done(b"result")
    assert q.result(item.message.offset, 0) == b"result"
    clock.move(900)
    take(q).fail("why")
    assert [letter.headers["schedule"] for letter in sej.dead_letters(q.dead_letter)] == ["reports"]


def test_a_put_of_the_same_name_changes_it(q: JournalQueue, clock: FakeClock) -> None:
    first = q.put(b"a", every=60, schedule="s")
    clock.move(10)
    assert q.put(b"a", every=60, schedule="s") == first  # as at each start of a program
    assert q.put(b"b", every=60, schedule="s") == first
    assert q.put(b"b", every=20, schedule="s") == clock.wall + 20 * NS
    assert [(each.name, each.value, each.every_s) for each in q.schedules] == [("s", b"b", 20.0)]
    clock.move(20)
    assert take(q).value == b"b"
    assert q.put(b"c", every=60) == q.put(b"c", every=60)
    q.put(b"d", every=60)
    assert len(q.schedules) == 3


def test_paused_resumed_and_removed_by_name(q: JournalQueue, clock: FakeClock) -> None:
    first = q.put(b"a", every=60, schedule="s")
    assert q.schedules.pause("s")
    assert (q.schedules["s"].paused, q.schedules["s"].next_at, len(q.schedules)) == (True, None, 1)
    clock.move(150)
    assert made(q) == []
    assert q.schedules.resume("s")
    assert q.schedules["s"].next_at == first + 120 * NS
    clock.move(30)
    assert made(q) == [("s", first + 120 * NS)]
    assert q.schedules.remove("s")
    clock.move(60)
    assert (made(q), list(q.schedules)) == ([], [])
    assert not (q.schedules.remove("s") or q.schedules.pause("s") or q.schedules.resume("s"))
    with pytest.raises(KeyError):
        q.schedules["s"]


@pytest.mark.parametrize("every", [1000, 10], ids=["long ago", "in the last minute"])
@pytest.mark.parametrize(("missed", "times"), [("one", [1]), ("all", [1, 2, 3]), ("skip", []), (None, [1])])
def test_missed_times(q: JournalQueue, clock: FakeClock, missed: str | None, times: list[int], every: int) -> None:
    first = q.put(b"a", every=every, schedule="s", missed=missed)
    clock.move(3.5 * every)
    times = [1] if missed == "skip" and every == 10 else times
    assert made(q) == [("s", first + (n - 1) * every * NS) for n in times]
    assert q.schedules["s"].next_at == first + 3 * every * NS
    clock.move(0.5 * every + 5)  # 5 seconds late: on time
    assert made(q) == [("s", first + 3 * every * NS)]


def test_wrong_arguments(q: JournalQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"every": 1, "cron": "* * * * *"}, "either every or cron"),
        ({"schedule": "s"}, "either every or cron"),
        ({"every": 1, "timezone": "UTC"}, "timezone is for cron only"),
        ({"every": 1, "delay_s": 1}, "delay_s must not be given"),
        ({"every": 1, "dedupe_key": b"a"}, "dedupe_keys must not be given"),
        ({"every": 0.0001}, "at least 0.001 seconds"),
        ({"every": 1, "schedule": ""}, "schedule must have 1 to 255 bytes"),
        ({"every": 1, "missed": "none"}, "missed must be"),
        ({"cron": "0 3 * *"}, "cron must be minute, hour, day, month and weekday"),
        ({"cron": "@reboot"}, "or @daily, got '@reboot'"),
        ({"cron": "0 3 * * *", "timezone": "Mars/Olympus"}, "timezone must be a name of the zone database"),
    ]
    for options, text in wrong:
        with pytest.raises(ValueError, match=text):
            q.put(b"a", **options)
    with pytest.raises(sej.InvalidMessageError, match="at most 16384 bytes"):
        q.put(bytes(16385), every=1)
    with pytest.raises(sej.InvalidMessageError):
        q.put(b"a", bytes(128), every=1)
    with pytest.raises(TypeError, match="value must be bytes"):
        q.put(1, every=1)
    assert (len(q.schedules), q.get(timeout=0)) == (0, None)
    with sej.open_queue(tmp_path / "a.tq") as text_queue:
        for act in (lambda: text_queue.put(b"a", every=1), lambda: list(text_queue.schedules)):
            with pytest.raises(sej.UnsupportedError, match="does not support schedules"):
                act()
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError, match="sej-journals\\[schedules\\]"):
        q.put(b"a", cron="* * * * *")


def test_a_worker_without_the_package_leaves_the_item_to_others(
    q: JournalQueue, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.put(b"a", cron="* * * * *", schedule="cron")
    q.put(b"b", every=60, schedule="every")
    clock.move(61)
    with monkeypatch.context() as lacking:
        lacking.setitem(sys.modules, "cronsim", None)
        with pytest.warns(RuntimeWarning, match="an item of a schedule cannot be made, and is made later"):
            assert take(q).value == b"b"
        assert q._due_s() is not None
        assert q.get(timeout=0) is None
    with opened(q.path, clock) as other:
        assert take(other).value == b"a"


ZONES = [
    # the hour from 2 to 3 does not exist on March 29, and is there twice on October 25
    ("30 2 * * *", "2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
    ("30 2 * * *", "2026-10-24T12:00:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
    ("30 * * * *", "2026-10-24T23:50:00Z", ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"]),
    ("0 3 * * mon-fri", "2026-10-23T02:00:00Z", ["2026-10-26T02:00:00Z", "2026-10-27T02:00:00Z"]),
]


@pytest.mark.parametrize(("cron", "start", "times"), ZONES)
def test_daylight_saving(q: JournalQueue, clock: FakeClock, cron: str, start: str, times: list[str]) -> None:
    clock.wall = int(datetime.fromisoformat(start).timestamp()) * NS
    q._core.locked(q._core.log.keep_clock)
    q.put(b"a", cron=cron, timezone="Europe/Berlin", schedule="s")
    found: list[int] = []
    while len(found) < len(times):
        clock.move(600)
        found += [at for _, at in made(q)]
    assert found == [int(datetime.fromisoformat(text).timestamp()) * NS for text in times]


@pytest.mark.parametrize(
    ("cron", "following"),
    [
        *(("@hourly", "2026-02-03T05:00"), ("@daily", "2026-02-04T00:00"), ("@midnight", "2026-02-04T00:00")),
        *(("@weekly", "2026-02-08T00:00"), ("@monthly", "2026-03-01T00:00")),
        *(("@yearly", "2027-01-01T00:00"), ("@annually", "2027-01-01T00:00")),
    ],
)
def test_cron_has_names(q: JournalQueue, clock: FakeClock, cron: str, following: str) -> None:
    clock.wall = int(datetime.fromisoformat("2026-02-03T04:05:06Z").timestamp()) * NS
    q._core.locked(q._core.log.keep_clock)
    assert q.put(b"a", cron=cron) == int(datetime.fromisoformat(f"{following}Z").timestamp()) * NS


def test_a_clock_that_is_set(q: JournalQueue, clock: FakeClock) -> None:
    """An interval keeps its length. A cron time that had its item gets no second one, unless the clock was wrong."""
    q.put(b"a", every=600, schedule="every")
    q.put(b"b", cron="0 * * * *", schedule="cron")
    clock.move(599)
    clock.wall += DAY * NS
    assert [name for name, _ in made(q)] == ["cron"]
    clock.move(1)
    assert [name for name, _ in made(q)] == ["every"]
    before = q.schedules["cron"].next_at
    clock.wall -= 2 * 3600 * NS
    clock.move(1)
    assert made(q) == []
    assert q.schedules["cron"].next_at == before
    clock.move(599)
    assert [name for name, _ in made(q)] == ["every"]
    clock.wall -= DAY * NS
    clock.move(1)
    made(q)
    after = q.schedules["cron"].next_at
    assert after is not None and 0 < after - clock.wall <= 3600 * NS


def test_a_reboot_with_a_clock_that_was_set_back_makes_no_interval_longer(tmp_path: Path, clock: FakeClock) -> None:
    q = opened(tmp_path, clock)
    q.put(b"a", every=600, schedule="s")
    kill(q)
    clock.reboot(set_by_s=-10 * DAY)
    with opened(tmp_path, clock) as q:
        clock.move(600)
        assert len(made(q)) == 1
        q._core.locked(q._core.log.compact)
        clock.move(600)
        assert len(made(q)) == 1


def test_a_process_that_dies_before_the_message_is_found_out(tmp_path: Path, clock: FakeClock) -> None:
    for other in (False, True):  # whether another message gets the offset
        with opened(tmp_path, clock) as q:
            first = q.put(b"a", every=60, schedule=str(other))
        clock.move(61)
        with dying(tmp_path, clock) as q:
            q.get(timeout=0)
        if other:
            with sej.SharedWriter(tmp_path) as w:
                w.append(b"another")
        with opened(tmp_path, clock) as q:
            q._core.locked(q._core.log.compact)
        with opened(tmp_path, clock) as q:
            assert q.get_many(9, timeout=0)[-1].headers["schedule-time"]
            assert q.schedules[str(other)].next_at == first + 60 * NS
            q.schedules.remove(str(other))
            q.purge()


def test_every_crash_state(clock: FakeClock) -> None:
    """Power is lost: each time has one item, as far as the schedule was acknowledged."""
    disk = CrashDisk()
    q = opened(PATH, clock, disk, durability="disk", compact_bytes=600)
    since = disk.settle()
    first = q.put(b"a", every=100, schedule="s", missed="all")
    disk.mark(("put", first))
    for moved in (100, 200):
        clock.move(moved)
        for item in q.get_many(2, timeout=0):
            disk.mark(("ending", at_of(item)))
            item.done()
            disk.mark(("done", at_of(item)))
    for crash in crashes(disk, q, clock, since, more_than=40):
        with opened(PATH, clock, crash.disk, durability="disk") as q:
            found = Counter(at for _, at in made(q))
            times = {first + n * 100 * NS for n in range(3)}
            marks = {word: {mark[1] for mark in crash.marks if mark[0] == word} for word in ("put", "ending", "done")}
            if marks["put"]:
                assert set(found) >= times - marks["ending"], crash.step
            assert not marks["done"] & set(found) and max(found.values(), default=1) == 1
            assert set(found) <= times


def test_a_disk_that_fails_at_any_call(clock: FakeClock) -> None:
    """Every failure is raised or warned about; afterwards the times have their items."""
    first = clock.wall + 100 * NS

    def prepared() -> CrashDisk:
        with opened(PATH, FakeClock(), inner := CrashDisk()) as q:
            assert q.put(b"a", every=100, schedule="s", missed="all") == first
        return inner

    clock.move(250)
    for inner, disk in failing(prepared):
        with suppress(OSError, sej.SejError, RuntimeWarning):
            q = opened(PATH, clock, disk)
            try:
                q.get_many(9, timeout=0)
            finally:
                kill(q)
        with opened(PATH, clock, inner) as q:
            assert [at for _, at in made(q)] == [first, first + 100 * NS]


def test_while_a_writer_has_the_journal_other_items_are_delivered(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path, lock_timeout=60) as q:
        q.put(b"ready")
        q.put(b"a", every=0.01, schedule="s")
        with sej.Writer(tmp_path):
            assert [take(q).value, q.get(timeout=0.1)] == [b"ready", None]
        item = q.get(timeout=10)
        assert item is not None and item.value == b"a"


WORKER = """
import os, sys, sej
path, output = sys.argv[1:]
with sej.open_queue(path, "worker", max_attempts=10000, compact_bytes=20_000) as q, open(output, "a") as file:
    while True:
        item = q.get()
        print(item.headers["schedule"], item.headers["schedule-time"], item.message.offset, file=file, flush=True)
        item.done()
"""


def test_one_item_for_each_time_of_killed_workers(tmp_path: Path) -> None:
    path, output, dice = tmp_path / "q", tmp_path / "output", random.Random(5)
    with sej.open_queue(path, "worker") as q:
        for name in ("a", "b"):
            q.put(b"", every=0.01, schedule=name, missed="all")
    command = [sys.executable, "-c", WORKER, str(path), str(output)]
    workers = [subprocess.Popen(command) for _ in range(3)]

    def lines() -> list[list[str]]:
        return [line.split() for line in output.read_text().splitlines()] if output.exists() else []

    for number in range(1, 9):
        until(lambda n=number: len(lines()) > n * 100)  # type: ignore[misc]
        victim = workers.pop(dice.randrange(3))
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        workers.append(subprocess.Popen(command))
    for worker in workers:
        worker.kill()
        worker.wait()
    with sej.open_queue(path, "worker", max_attempts=10000) as q:
        rows = {(name, at, int(offset)) for name, at, offset in lines()}
        for each in list(q.schedules):
            q.schedules.remove(each.name)
        rows |= {(item.headers["schedule"], item.headers["schedule-time"], item.message.offset) for item in q}
    assert sorted(offset for _, _, offset in rows) == list(range(len(rows)))
    for name in ("a", "b"):
        times = sorted(datetime.fromisoformat(at).timestamp() for row, at, _ in rows if row == name)
        assert len(times) > 100
        assert all(abs(after - before - 0.01) < 0.002 for before, after in pairwise(times))


def test_a_waiting_process_wakes_for_the_next_time(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORKER, str(tmp_path), str(tmp_path / "out")]
    with sej.open_queue(tmp_path, "worker") as q, subprocess.Popen(command) as worker:
        q.put(b"first", headers={"schedule": "-", "schedule-time": "-"})
        until(lambda: q.stats().done == 1)
        q.put(b"", every=0.2, schedule="s")
        until(lambda: q.stats().done >= 3)
        worker.kill()


FAKED = """
import os, sys, sej
file, path = sys.argv[1:]
def set_clock(text):
    with open(file + ".new", "w") as new: new.write(text)
    os.rename(file + ".new", file)
with sej.open_queue(path) as q:
    q.put(b"", every=0.4, schedule="every")
    q.put(b"", cron="0 0 1 1 *", schedule="cron")
    for number, text in enumerate(["+0", "+400d", "-1h", "+400d"]):
        set_clock(text)
        found = [q.get(timeout=5).headers["schedule"] for _ in range(2 + number % 2)]
        print(sorted(found))
"""


def test_a_clock_that_is_set_under_a_process(tmp_path: Path) -> None:
    """libfaketime sets the wall clock, and leaves the one of the boot alone."""
    clock = tmp_path / "clock"
    clock.write_text("+0")
    environment = {**os.environ, "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock)}
    environment |= {"FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_XRESET": "1"}
    code = [sys.executable, "-c", FAKED, str(clock), str(tmp_path / "q")]
    found = subprocess.run(code, env=environment, capture_output=True, text=True, check=False, timeout=60)
    print(found.stderr)
    rows = found.stdout.splitlines()
    assert [row.count("every") for row in rows] == [2, 2, 2, 2]
    assert [row.count("cron") for row in rows] == [0, 1, 0, 1]


def test_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (("nightly", "send", "--cron", "0 3 * * mon-fri", "--timezone", "Europe/Berlin"),
                  ("often", "a", "--every", "5m", "--header", "a=b", "--key", "k")):  # fmt: skip
        added = inside(monkeypatch, "queue", "schedule", "add", "mails", *words)
        rows = inside(monkeypatch, "queue", "schedule", "list", "mails").out.decode().splitlines()
        assert (added.code, added.out.decode().strip()) == (0, rows[-1].split("\t")[3]), "the next time"
    assert inside(monkeypatch, "queue", "schedule", "pause", "mails", "often").code == 0
    rows = inside(monkeypatch, "queue", "schedule", "list", "mails").out.decode().splitlines()
    assert [row.split("\t")[::2] for row in rows] == [["nightly", "Europe/Berlin", "send"], ["often", "-", "a"]]
    assert rows[1].split("\t")[3] == "paused"
    assert b'"headers": {"a": "b"}' in inside(monkeypatch, "queue", "schedule", "list", "--json", "mails").out
    assert inside(monkeypatch, "queue", "schedule", "resume", "mails", "often").code == 0
    assert inside(monkeypatch, "queue", "schedule", "remove", "mails", "often").code == 0
    done = inside(monkeypatch, "queue", "schedule", "remove", "mails", "often")
    assert (done.code, done.err) == (4, "sej: mails: no schedule 'often'; `sej queue schedule list` prints them\n")
    (tmp_path / "tasks.py").write_text("def report(item):\n    raise SystemExit(item.headers['schedule'])\n")
    command = [sys.executable, "-m", "sej", "worker", "mails", "tasks:report", "--every", "1s"]
    assert subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stderr.endswith(
        "tasks:report\n"
    )
    command[4] = "new"  # only this command puts items: it creates the queue, and does not wait for it
    for worker in (command, [*command, "--wait"]):
        assert subprocess.run(worker, capture_output=True, text=True, check=False, timeout=60).stderr.endswith(
            "tasks:report\n"
        )


# --- against a model


class Model:
    """Schedules: what is next, and what was put so far."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.made: list[tuple[str, int]] = []

    def look(self, now: int, *, dies: bool = False) -> None:
        """Put what is late, or, if the process dies before the first message, only pass times that are skipped."""
        for name, row in self.rows.items():
            while row["next"] <= now and not row["paused"]:
                late = list(range(row["next"], now + 1, row["every"]))
                if row["missed"] == "all":
                    put = late
                elif row["missed"] == "one" or now - late[0] <= 60 * NS:
                    put = late[:1]
                else:
                    put = [at for at in late if at > now - 60 * NS][:1]
                if put and dies:
                    break
                self.made += [(name, at) for at in put]
                row["next"] = late[-1] + row["every"]


class Machine(RuleBasedStateMachine):
    """Times of an interval and of a cron expression, through kills, reboots and clocks that are set."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock, self.model = FakeClock(), Model()
        self.queues: list[JournalQueue] = []

    @initialize()
    def begin(self) -> None:
        self.queues = [self.open(), self.open()]

    def open(self) -> JournalQueue:
        return opened(self.folder.name, self.clock, segment_bytes=400, compact_bytes=3000)

    @rule(
        who=st.integers(0, 1),
        name=st.sampled_from("abc"),
        every=st.sampled_from([None, 7, 40, 1000]),
        missed=st.sampled_from(MISSED),
    )
    def put(self, who: int, name: str, every: int | None, missed: str) -> None:
        row, ns = self.model.rows.get(name), (every or 300) * NS
        when: dict[str, Any] = {"cron": "*/5 * * * *"} if every is None else {"every": every}
        kept = row is not None and (row["every"], row["cron"]) == (ns, every is None)
        wall = self.clock.wall
        first = row["next"] if row and kept else (wall // ns + 1) * ns if every is None else wall + ns
        paused = bool(row and row["paused"])
        assert self.queues[who].put(name.encode(), schedule=name, missed=missed, **when) == first
        self.model.rows[name] = {
            "every": ns, "cron": every is None, "missed": missed, "paused": paused, "next": first
        }  # fmt: skip

    @rule(who=st.integers(0, 1), name=st.sampled_from("abc"), how=st.sampled_from(["pause", "resume", "remove"]))
    def change(self, who: int, name: str, how: str) -> None:
        row = self.model.rows.get(name)
        assert getattr(self.queues[who].schedules, how)(name) == (row is not None)
        if row is not None and how == "remove":
            del self.model.rows[name]
        elif row is not None:
            if row["paused"] and how == "resume" and row["next"] <= self.clock.wall:
                row["next"] += ((self.clock.wall - row["next"]) // row["every"] + 1) * row["every"]
            row["paused"] = how == "pause"

    @rule(who=st.integers(0, 1))
    def get(self, who: int) -> None:
        before = len(self.model.made)
        self.model.look(self.clock.wall)
        assert Counter(made(self.queues[who])) == Counter(self.model.made[before:])

    @rule(seconds=st.sampled_from([1, 7, 61, 200, 299]))
    def move(self, seconds: int) -> None:
        self.clock.move(seconds)

    @rule(seconds=st.sampled_from([-3600, -20, 20, 500]))
    def set_clock(self, seconds: int) -> None:
        self.clock.wall += seconds * NS
        for row in self.model.rows.values():
            row["next"] += 0 if row["cron"] else seconds * NS
        self.queues[0]._core.locked(self.queues[0]._core.log.keep_clock)

    @rule(who=st.integers(0, 1), how=st.sampled_from(["close", "kill", "compact"]))
    def reopen(self, who: int, how: str) -> None:
        if how == "compact":
            self.queues[who]._core.locked(self.queues[who]._core.log.compact)
        elif how == "kill":
            kill(self.queues[who])
        else:
            self.queues[who].close()
        self.queues[who] = self.open() if how != "compact" else self.queues[who]

    @precondition(lambda self: self.model.rows)
    @rule()
    def die(self) -> None:
        """A process dies between the record and the message."""
        self.model.look(self.clock.wall, dies=True)
        q = opened(self.folder.name, self.clock, dies_before_the_message())
        try:
            q.get(timeout=0)
        except DiedError:
            kill(q)
        q.close()

    @rule()
    def reboot(self) -> None:
        for queue in self.queues:
            kill(queue)
        self.clock.reboot(5)
        self.queues = [self.open(), self.open()]

    def teardown(self) -> None:
        if self.queues:
            self.get(0)
            nexts = {each.name: each.next_at for each in self.queues[1].schedules}
            expected = {name: None if row["paused"] else row["next"] for name, row in self.model.rows.items()}
            assert nexts == expected
        for queue in self.queues:
            queue.close()
        assert sej.Journal(self.folder.name).verify() == []
        self.folder.cleanup()


TestSchedulesAgainstModel = Machine.TestCase
TestSchedulesAgainstModel.settings = settings(
    max_examples=1000 if "SEJ_TORTURE_S" in os.environ else 30, stateful_step_count=30
)
