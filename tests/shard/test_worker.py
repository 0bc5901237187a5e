"""Workers: alone, in groups, through failures, and with fellows who die at any moment."""

import asyncio
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest

import sej
import shard
from sej import codec
from tests.crash.harness import Harness, dead_letters_in, require_sound, seeded_random
from tests.crash.reader_history import ReaderHistory
from tests.sej.hooks import PATIENCE_S
from tests.sej.support import read_all, write
from tests.shard.worker_process import RECORD, VIOLATION
from tests.shard.working import BITS, MAX_ATTEMPTS, NAME

ROOT = FilePath(__file__).resolve().parent.parent.parent
PROGRAM = FilePath(__file__).with_name("worker_process.py")


@pytest.fixture
def path(tmp_path: FilePath) -> shard.Path:
    return shard.Path(tmp_path / "root", "orders", 3)


def fill(path: shard.Path, count: int, start: int = 0) -> None:
    with shard.Writer(path) as writer:
        keys = [b"key %d" % number for number in range(start, start + count)]
        writer.append_many(keys, keys)


# --- one worker


def test_everything_is_handled_in_order_and_kept(path: shard.Path) -> None:
    fill(path, 500)
    got: dict[int, list[int]] = {}
    worker = shard.Worker(path, "mailer", timeout=0.0)
    assert worker.run(lambda index, message: got.setdefault(index, []).append(message.offset)) == 500
    assert all(offsets == list(range(len(offsets))) for offsets in got.values())
    assert sum(map(len, got.values())) == 500
    assert worker.shards == []
    assert all(row.messages == 0 and row.offset == row.end_offset for row in shard.lag(path, "mailer"))
    assert worker.run(lambda index, message: 1 / 0) == 0
    fill(path, 10, 1000)
    assert shard.Worker(path, "mailer").run(lambda index, message: None, timeout=0.0) == 10
    assert not [entry for index in range(8) for entry in os.listdir(path.dir(index) + "/ofs") if "tries" in entry]


def test_a_handler_that_fails_gets_the_message_again_while_other_shards_go_on(path: shard.Path) -> None:
    fill(path, 200)
    seen: list[tuple[int, int]] = []
    failing = next(index for index in range(8) if sej.Journal(path.dir(index)).end_offset > 3)

    def handle(index: int, message: sej.Message) -> None:
        seen.append((index, message.offset))
        if index == failing and message.offset == 2 and seen.count((index, 2)) < 3:
            raise RuntimeError("not yet")

    assert shard.Worker(path, "w", timeout=0.0, backoff_s=0.01).run(handle) == 200
    assert seen.count((failing, 2)) == 3
    assert len(seen) == 202
    first, last = seen.index((failing, 2)), len(seen) - seen[::-1].index((failing, 2))
    assert {index for index, _ in seen[first:last]} - {failing}
    mine = [offset for index, offset in seen if index == failing]
    assert mine == sorted(mine)


def test_a_shard_whose_lock_was_removed_is_left_to_its_new_holder(path: shard.Path) -> None:
    fill(path, 200)
    seen: set[int] = set()
    others: list[sej.Offset] = []

    def handle(index: int, message: sej.Message) -> None:
        if not seen:
            for lost in set(worker.shards) - {index}:
                FilePath(path.dir(lost), "ofs", "w.lck").unlink()
                others.append(sej.Offset(path.dir(lost), "w"))
        seen.add(index)

    worker = shard.Worker(path, "w", timeout=0.0)
    worker.run(handle)
    assert len(seen) == 1
    assert len(others) == 7
    for other in others:
        assert (other.value, FilePath(other.path, "ofs", "w.tries").exists()) == (0, True)
        other.close()


def test_a_shard_that_is_removed_is_named_and_the_others_go_on(path: shard.Path) -> None:
    fill(path, 800)
    handled: set[bytes] = set()
    removed: list[int] = []

    def handle(index: int, message: sej.Message) -> None:
        handled.add(message.value)
        if not removed:
            removed.append(next(other for other in worker.shards if other != index))
            shutil.rmtree(path.dir(removed[0]))

    worker = shard.Worker(path, "w")
    with pytest.raises(sej.JournalNotFoundError) as caught:
        worker.run(handle)
    assert str(caught.value.path) == path.dir(removed[0])
    shard.Worker(path, "w", timeout=0.0).run(handle)
    keys = [b"key %d" % number for number in range(800)]
    assert handled >= {key for key in keys if path.index(key) != removed[0]}
    assert [problem.path for problem in shard.check(path.root)] == [path.dir(removed[0])]


def test_dead_letters(path: shard.Path, tmp_path: FilePath, caplog: pytest.LogCaptureFixture) -> None:
    fill(path, 100)

    def handle(index: int, message: sej.Message) -> None:
        if message.value in (b"key 7", b"key 42"):
            raise RuntimeError("poison")

    worker = shard.Worker(path, "w", max_attempts=3, dead_letter=tmp_path / "dead", timeout=0.0, backoff_s=0.001)
    assert worker.run(handle) == 100
    letters = sorted(message.value.partition(b"\n")[2] for message in read_all(tmp_path / "dead"))
    assert letters == [b"key 42", b"key 7"]
    assert all("in handle" in letter.traceback for letter in sej.dead_letters(tmp_path / "dead"))
    assert caplog.text.count('raise RuntimeError("poison")') == 6


def test_messages_whose_handler_exits_or_is_cancelled_become_dead_letters(path: shard.Path, tmp_path: FilePath) -> None:
    fill(path, 50)

    def handle(index: int, message: sej.Message) -> None:
        if message.value == b"key 7":
            sys.exit(3)
        if message.value == b"key 42":
            raise asyncio.CancelledError

    def run() -> int:
        dead = tmp_path / "dead"
        return shard.Worker(path, "w", max_attempts=2, dead_letter=dead, timeout=0.0, backoff_s=0.001).run(handle)

    for _ in range(3):  # one before notes were taken
        with pytest.raises(SystemExit):
            run()
    run()
    letters = [letter.message.value for letter in sej.dead_letters(tmp_path / "dead")]
    assert sorted(letters) == [b"key 42", b"key 7"]
    assert not list(FilePath(path.root).glob("*/ofs/*.tries"))


def test_without_dead_letters_the_worker_stops_at_the_message(path: shard.Path) -> None:
    fill(path, 50)
    with pytest.raises(sej.RetriesExhaustedError, match=r"orders\.3\.00.*poison"):
        shard.Worker(path, "w", max_attempts=2, timeout=0.0, backoff_s=0.001).run(poison)
    assert shard.Worker(path, "w", timeout=0.0).run(lambda index, message: None) > 0
    assert sum(row.messages for row in shard.lag(path, "w")) == 0


def poison(index: int, message: sej.Message) -> None:
    if message.offset == 1:
        raise RuntimeError("poison")


def test_a_shard_read_by_a_consumer_is_left_alone(path: shard.Path) -> None:
    fill(path, 200)
    with sej.Offset(path.dir(3), "w"):
        seen: set[int] = set()
        shard.Worker(path, "w", timeout=0.0).run(lambda index, message: seen.add(index))
        assert 3 not in seen
    assert shard.Worker(path, "w", timeout=0.0).run(lambda index, message: None) > 0


def test_shards_that_appear_are_taken_up(path: shard.Path) -> None:
    FilePath(path.root).mkdir()
    came = threading.Semaphore(0)
    worker = shard.Worker(path, "w")
    thread = threading.Thread(target=worker.run, args=(lambda index, message: came.release(),))
    thread.start()
    with shard.Writer(path) as writer:
        for number in range(20):
            writer.append(b"x", b"%d" % number)
            assert came.acquire(timeout=60)
    worker.stop()
    thread.join(60)
    assert not thread.is_alive()


def test_a_missing_root_and_a_wrong_name_are_refused(path: shard.Path) -> None:
    with pytest.raises(sej.InvalidNameError):
        shard.Worker(path, "../w")
    with pytest.raises(sej.JournalNotFoundError):
        shard.Worker(path, "w").run(lambda index, message: None)


def test_a_handler_whose_call_runs_nothing_handles_no_message(path: shard.Path) -> None:
    async def later(index: int, message: sej.Message) -> None:
        """Not reached."""

    fill(path, 1)
    worker = shard.Worker(path, "w", max_attempts=1, timeout=0.0)
    with pytest.raises(TypeError, match="handler must be a function without `async`"):
        worker.run(later)
    with pytest.raises(sej.RetriesExhaustedError, match="the handler returned a coroutine"):
        worker.run(lambda index, message: later(index, message))
    assert sum(row.messages for row in shard.lag(path, "w")) == 1


def test_a_shard_that_is_made_meanwhile_starts_at_its_first_message(path: shard.Path) -> None:
    """Where others start at the end: no message of it is older than the worker. That is kept before it is handled."""
    with sej.Writer(path.dir(0)) as writer, sej.Offset(path.dir(0), "w") as offset:
        writer.append_many([b"old", b"first"])
        offset.commit(1)
    write(path.dir(1), [b"old"])
    seen: list[tuple[int, bytes]] = []
    worker = shard.Worker(path, "w", default=sej.LAST)

    def handle(index: int, message: sej.Message) -> None:
        seen.append((index, message.value))
        if index == 0:
            write(path.dir(2), [b"a", b"b", b"c"])
        if message.value == b"a":
            kept.append(sej.read_offset(path.dir(2), "w"))
        if len(seen) == 4:
            worker.stop()

    kept: list[int | None] = []
    worker.run(handle, timeout=60.0)
    assert seen == [(0, b"first"), (2, b"a"), (2, b"b"), (2, b"c")]
    assert kept == [0]


# --- groups of processes


class Group:
    """Worker processes of one name, their logs, and who of them was killed."""

    def __init__(self, path: shard.Path, logs: FilePath) -> None:
        self.path = path
        self.logs = logs
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.killed: set[int] = set()
        logs.mkdir()

    def join(self) -> int:
        words = [self.path.root, self.path.prefix, str(self.path.bits), "w", str(self.logs)]
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *words],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.running[process.pid] = process
        return process.pid

    def kill(self, pid: int) -> None:
        process = self.running.pop(pid)
        self.killed.add(pid)
        process.kill()
        self._end(process)

    def terminate(self, pid: int) -> None:
        process = self.running.pop(pid)
        process.terminate()
        self._end(process)
        if process.returncode == -signal.SIGTERM:  # it had not begun to run, and so handled nothing
            log = self.logs / f"{pid}.log"
            assert not log.exists() or not log.stat().st_size
        else:
            assert process.returncode == 0

    def ticks(self, count: int, deadline_s: float = 60.0) -> None:
        """Wait until so many more messages were handled."""
        until = time.monotonic() + deadline_s
        while count > 0:
            got = self.drain(max(until - time.monotonic(), 0))
            assert got, f"{count} more messages were expected"
            count -= got

    def drain(self, timeout: float) -> int:
        """Take whatever ticks come, waiting for the first one; returns how many."""
        pipes = [process.stdout for process in self.running.values() if process.stdout is not None]
        got = [os.read(pipe.fileno(), 65536) for pipe in select.select(pipes, [], [], timeout)[0]]
        assert all(got), "a worker ended by itself"
        return sum(map(len, got))

    def handled(self) -> Iterator[tuple[float, float, int, int, int]]:
        """(begin, end, shard, offset, pid) of everything that was handled, as it happened."""
        rows = []
        for log in self.logs.glob("*.log"):
            data = log.read_bytes()
            for at in range(0, len(data) - RECORD.size + 1, RECORD.size):
                index, offset, begin, end = RECORD.unpack_from(data, at)
                assert not index & VIOLATION, f"two workers had shard {index & ~VIOLATION} at once"
                rows.append((begin, end, index, offset, int(log.stem)))
        return iter(sorted(rows))

    def close(self) -> None:
        for process in self.running.values():
            process.kill()
            self._end(process)
        self.running.clear()

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        process.stdout.read()
        process.stdout.close()
        process.wait(60)


@pytest.fixture
def group(tmp_path: FilePath) -> Iterator[Group]:
    path = shard.Path(tmp_path / "root", "orders", 6)
    for index in range(path.count):  # by hand: a writer syncs each one
        segment = FilePath(path.dir(index), "jnl", "0000000000000000.jnl")
        segment.parent.mkdir(parents=True)
        segment.write_bytes(b"".join(codec.encode(offset, 0, 0, b"", b"x") for offset in range(20)))
    group = Group(path, tmp_path / "logs")
    try:
        yield group
    finally:
        group.close()


def append_round(writer: shard.Writer) -> None:
    """One message into every shard."""
    for index in range(64):
        writer.append(b"x", type=index)


def test_a_new_worker_gets_its_share_and_a_dead_ones_shards_move(group: Group) -> None:
    first = group.join()
    group.ticks(64 * 20)
    with shard.Writer(group.path, route=lambda message: message.type) as writer:
        second = group.join()
        shares: dict[int, set[int]] = {first: set(), second: set()}
        until = time.monotonic() + PATIENCE_S
        while len(shares[second]) != 32:  # until the second has its half, by what it handles
            assert time.monotonic() < until, shares
            append_round(writer)
            group.ticks(64)
            shares = {first: set(), second: set()}
            for row in list(group.handled())[-64:]:
                shares[row[4]].add(row[2])
        assert len(shares[first]) == 32
        group.kill(second)
        append_round(writer)
        newest = {(index, end - 1) for index, end in writer.offsets.items()}
    while newest - {(index, offset) for _, _, index, offset, pid in group.handled() if pid == first}:
        group.ticks(1)  # what the dead one had not committed comes again, too
    group.terminate(first)
    assert sum(row.messages for row in shard.lag(group.path, "w")) == 0


@pytest.mark.torture
def test_eight_workers_with_kills_and_joins(group: Group, torture_s: float) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(8):
        group.join()
    group.ticks(200)
    until = time.monotonic() + torture_s
    total = 64 * 20
    with shard.Writer(group.path, route=lambda message: message.type) as writer:
        while time.monotonic() < until:
            for _ in range(rng.randrange(1, 8)):
                append_round(writer)
                total += 64
            group.ticks(rng.randrange(64))
            action = rng.choice(["kill", "kill", "terminate", "join"])
            if action != "join" and len(group.running) > 1:
                victim = rng.choice(list(group.running))
                group.kill(victim) if action == "kill" else group.terminate(victim)
            while len(group.running) < 8 and rng.random() < 0.8:
                group.join()
    while sum(row.messages for row in shard.lag(group.path, "w")):
        group.drain(0.2)
    for pid in list(group.running):
        group.terminate(pid)
    reached: dict[int, int] = {}
    owner: dict[int, int] = {}
    ended: dict[int, float] = {}
    duplicates = 0
    for begin, end, index, offset, pid in group.handled():
        assert begin >= ended.get(index, 0.0), f"two workers had shard {index} at once"
        due = reached.get(index, 0)
        if owner.get(index) in (None, pid):
            assert offset == due, f"shard {index}: {offset} after {due - 1} in one worker's hands"
        else:
            assert offset <= due, f"shard {index}: {offset} came while {due} was due"
            duplicates += due - offset
            # One who ended in order kept its place; and a duplicate of a duplicate goes back to an earlier death.
            assert offset == due or group.killed, f"shard {index}: {offset} came twice without a death"
            if offset < due:
                assert owner[index] in group.killed
        reached[index] = offset + 1
        owner[index] = pid
        ended[index] = end
    assert sum(reached.values()) == total
    print(f"{total} messages, {len(group.killed)} killed, {duplicates} handled twice")


# --- Random histories of workers that share a sharded journal, start, fail, stop and may die at any call of the disk


@pytest.mark.torture
def test_a_random_history(tmp_path: FilePath, torture_s: float) -> None:
    """Processes start, fail, stop and may die at any call of the disk. After each history:

    At any time at most one worker had a shard. Its messages were delivered in order, and before the next one began,
    each was handled or is a dead letter. No message below the kept offset was delivered again. A dead letter has used
    all its attempts.
    """
    path = shard.Path(tmp_path / "tree", "s", BITS)
    for directory in path.dirs():
        sej.Writer(directory).close()
    world = Harness(tmp_path, seeded_random(), "tests.shard.working", path.root)
    world.run_processes(torture_s, 5, lambda: "end" in {row[3] for row in world.lines()}, replacing=0.3)
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    left: list[list[int]] = [[] for _ in range(path.count)]
    dead = f"{path.root}-dead"
    worker = shard.Worker(path, NAME, max_attempts=MAX_ATTEMPTS, dead_letter=dead, timeout=0.0)
    worker.run(lambda index, message: left[index].append(message.offset))
    assert sum(row.messages for row in shard.lag(path, NAME)) == 0
    letters = dead_letters_in(dead)
    for index, directory in enumerate(path.dirs()):
        require_sound(directory)
        journal = sej.Journal(directory)
        assert journal.id is not None
        mine = [letter for letter in letters if letter.source == journal.id.hex()]
        rows = [row for row in lines if row[1] == str(index)]
        past = ReaderHistory({row[2] for row in rows if row[3] == "over"}, set(), mine, MAX_ATTEMPTS, exact=False)
        for _, _, claim, word, *about in rows:
            past.add(claim, word, *map(int, about))
        past.end(left[index], journal.end_offset)
