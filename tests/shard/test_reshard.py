"""reshard: nothing lost, nothing twice, order within a key, readers' places; and SIGKILL at any call to the disk."""

import contextlib
import itertools
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path as FilePath

import pytest

import sej
import shard
from sej.system.disk import File, OsDisk
from shard import resharding
from shard.routing import Route
from tests.crash.disk import CrashDisk, FaultyOnly
from tests.sej.hooks import HookedDisk
from tests.sej.support import commit, write

KEYS = [b"key %d" % number for number in range(60)]


def fill(path: shard.Path, count: int, start: int = 0) -> None:
    with shard.Writer(path, segment_bytes=2000) as writer:
        keys = [KEYS[number % 7 * number % 60] for number in range(start, start + count)]
        values = [b"%d" % number for number in range(start, start + count)]
        types = [number % 256 for number in range(start, start + count)]
        stamps = [sej.NO_TIMESTAMP if number % 10 == 0 else number for number in range(start, start + count)]
        writer.append_many(values, keys, types, stamps)


def by_key(path: shard.Path) -> dict[bytes, list[tuple[int, int, bytes]]]:
    """Each key's messages in their order, and that all of them lie where they belong."""
    found: dict[bytes, list[tuple[int, int, bytes]]] = {}
    with shard.Scanner(path) as scanner:
        for index, message in scanner:
            assert path.index(message.key) == index
            found.setdefault(message.key, []).append((message.timestamp, message.type, message.value))
    return found


@pytest.fixture
def source(tmp_path: FilePath) -> shard.Path:
    path = shard.Path(tmp_path / "root", "orders", 3)
    fill(path, 1000)
    return path


@pytest.mark.parametrize(
    ("place", "bits"), [*(("root/orders", bits) for bits in (0, 1, 2, 4, 6, 10)), ("elsewhere/", 2)]
)
def test_more_and_fewer_shards(source: shard.Path, tmp_path: FilePath, place: str, bits: int) -> None:
    root, prefix = place.split("/")
    target = shard.Path(tmp_path / root, prefix, bits)
    steps: list[tuple[int, int]] = []
    done = shard.reshard(source, target, progress=lambda *step: steps.append(step), max_open=8)
    assert by_key(target) == by_key(source)
    assert done.messages == 1000
    assert steps[-1] == (1000, 1000)
    assert steps == sorted(steps)
    assert [problem.kind for problem in shard.check(target.root)] == ["bit counts"] * bool(prefix)
    assert shard.reshard(source, target) == done
    assert all(sej.Journal(path).verify() == [] for path in target.dirs() if os.path.exists(path))


def test_a_route_of_ones_own(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "t", "orders", 2)
    shard.reshard(source, target, route=lambda message: message.type)
    with shard.Scanner(target) as scanner:
        rows = list(scanner)
    assert len(rows) == 1000
    assert all(message.type & 3 == index for index, message in rows)


@pytest.mark.parametrize("bits", [1, 3, 5])
def test_no_reader_skips_a_message_that_it_has_not_read(source: shard.Path, tmp_path: FilePath, bits: int) -> None:
    rng = random.Random(bits)
    unread: dict[str, set[bytes]] = {}
    for reader in ("some", "all", "none"):
        unread[reader] = set()
        for index in range(source.count):
            end = sej.Journal(source.dir(index)).end_offset
            place = {"some": rng.randrange(end + 1), "all": end, "none": 0}[reader]
            commit(source.dir(index), reader, place)
            with sej.Scanner(source.dir(index), place) as scanner:
                unread[reader] |= {message.value for message in scanner}
    target = shard.Path(tmp_path / "t", "orders", bits)
    assert shard.reshard(source, target).readers == ["all", "none", "some"]
    for reader, values in unread.items():
        seen = set()
        for found in shard.find(target.root):
            place = sej.read_offset(found.path, reader) or 0
            with sej.Scanner(found.path, place) as scanner:
                seen |= {message.value for message in scanner}
        assert values <= seen
        if reader == "all":
            assert seen == set()


def test_what_cannot_be_done_is_refused(source: shard.Path, tmp_path: FilePath) -> None:
    with pytest.raises(ValueError, match="must differ"):
        shard.reshard(source, shard.Path(source.root, "orders", 3))
    with pytest.raises(sej.JournalNotFoundError, match=r"no shard of users\.3"):
        shard.reshard(shard.Path(source.root, "users", 3), shard.Path(tmp_path / "t", "users", 1))
    with shard.Writer(source) as writer:
        writer.append(b"x", KEYS[0])
        with pytest.raises(sej.LockedError, match=r"writer lock is held by .*close it"):
            shard.reshard(source, shard.Path(tmp_path / "t", "orders", 1))
    there = shard.Path(tmp_path / "there", "orders", 1)
    fill(there, 3)
    with pytest.raises(sej.SejError, match="exists already"):
        shard.reshard(source, there)


@pytest.mark.parametrize("first", ["fnv", lambda message: message.offset])
def test_a_decided_reshard_keeps_its_route(
    first: Route, source: shard.Path, tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two routes would split keys, and remember the wrong one."""
    target = shard.Path(tmp_path / "t", "orders", 2)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(resharding, "_publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shard.reshard(source, target, route=first)
    with pytest.raises(sej.SejError, match="this reshard was completed with route="):
        shard.reshard(source, target, route="xxh64")
    assert shard.reshard(source, target).messages == 1000
    if not callable(first):
        assert shard.check(target.root) == []
        with shard.Writer(target) as writer:
            assert writer.append(b"later", KEYS[0])[0] == target.index(KEYS[0], "fnv")


def test_a_source_that_was_made_again_is_not_called_copied(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "t", "orders", 1)
    shard.reshard(source, target)
    again = source.dir(source.index(KEYS[0]))
    shutil.rmtree(again)
    write(again, [b"new"] * 3, [KEYS[0]] * 3)
    with pytest.raises(sej.OffsetBeyondEndError, match=r"ends at offset 3, and it ended at \d+ when it was copied"):
        shard.reshard(source, target)


def killing_disk(left: int) -> HookedDisk:
    """The real disk; its process ends by SIGKILL at a call that changes something, or in the middle of its write."""
    calls = itertools.count()

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if next(calls) == left:
            if verb == "write" and file is not None and left % 2:
                file.write(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    return HookedDisk(hook)


def _killed(source: shard.Path, target: shard.Path, call: int) -> bool:
    """Reshard in a child that dies at a call; whether it died."""
    child = os.fork()
    if not child:
        try:
            resharding._BATCH = 64  # type: ignore[misc]
            shard.reshard(source, target, disk=killing_disk(call), max_open=2, segment_bytes=3000)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), f"the child failed with {status}"
    return status != 0


def deaths(torture_s: float) -> Iterator[int]:
    """Calls to die at: a few spread ones, and with time to spare ever more."""
    rng = random.Random(torture_s)
    yield from (1, 5, 17, 40, 90, 200)
    for _ in range(int(torture_s * 2)):
        yield rng.randrange(600)


@pytest.mark.torture
def test_a_kill_at_any_call_loses_and_doubles_nothing(tmp_path: FilePath, torture_s: float) -> None:
    source = shard.Path(tmp_path / "root", "orders", 2)
    fill(source, 700)
    commit(source.dir(1), "reader", 20)
    expected = by_key(source)
    for round_, call in enumerate(deaths(torture_s)):
        target = shard.Path(tmp_path / f"target-{round_}", "orders", 3)
        step = call
        while _killed(source, target, step):
            step += step // 2 + 1  # the next run dies somewhere else
        assert by_key(target) == expected
        with shard.Scanner(target) as scanner:
            assert sum(1 for _ in scanner) == 700
        unread = {message.value for message in sej.Scanner(source.dir(1), 20)}
        for index in range(target.count):
            if os.path.exists(target.dir(index)):
                with sej.Scanner(target.dir(index), sej.read_offset(target.dir(index), "reader") or 0) as scan:
                    unread -= {message.value for message in scan}
        assert not unread


def test_a_shard_that_is_made_meanwhile_is_copied_too(tmp_path: FilePath) -> None:
    source, target = shard.Path(tmp_path / "s", "orders", 3), shard.Path(tmp_path / "t", "orders", 4)
    with shard.Writer(source) as writer:
        writer.append_many([b"%d" % number for number in range(1000)], [KEYS[0]] * 1000)
    key = next(key for key in KEYS if source.index(key) != source.index(KEYS[0]))
    came: list[int] = []

    def append_once(done: int, total: int) -> None:
        if done == total and not came:
            came.append(done)
            with shard.Writer(source) as writer:
                writer.append_many([b"late"] * 100, [key] * 100)
                with pytest.raises(shard.ShardsLockedError, match=rf"pid={os.getpid()}.*"):
                    writer.append_many([b"refused"], [KEYS[0]])

    assert shard.reshard(source, target, progress=append_once).messages == 1100
    assert by_key(target) == by_key(source)


@pytest.mark.parametrize(("count", "shown"), [(1, "1 message was"), (3, "3 messages were")])
def test_messages_after_the_last_round_are_named(
    source: shard.Path, tmp_path: FilePath, count: int, shown: str
) -> None:
    target = shard.Path(tmp_path / "t", "orders", 4)
    done = shard.reshard(source, target)
    index = source.index(KEYS[0])
    end = sej.Journal(source.dir(index)).end_offset
    with shard.Writer(source) as writer:
        writer.append_many([b"late"] * count, [KEYS[0]] * count)
    with pytest.raises(sej.SejError, match=rf"{shown} appended to the source.*{index:03x} from offset {end} on"):
        shard.reshard(source, target)
    assert done.messages == 1000


def test_work_queues_must_be_done(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "t", "orders", 1)
    index = source.index(KEYS[0])
    with sej.open_queue(source.dir(index), "jobs") as queue:
        queue.put(b"soon", delay_s=1000)
        assert queue.stats().delayed == 1
    with pytest.raises(sej.SejError, match=rf"'jobs' of shard {index:03x} has items .*1 delayed") as caught:
        shard.reshard(source, target)
    os.unlink(str(caught.value.path))
    shard.reshard(source, target)
    left = [sej.open_queue(path, "jobs") for path in target.dirs() if os.path.exists(path)]
    with contextlib.ExitStack() as stack:
        counts = [stack.enter_context(queue).stats() for queue in left]
    assert sum(count.ready for count in counts) >= sej.Journal(source.dir(index)).end_offset
    assert sum(count.delayed for count in counts) == 0


def test_a_queue_that_is_done_moves_as_a_reader_does(source: shard.Path, tmp_path: FilePath) -> None:
    for index in range(source.count):
        if os.path.exists(source.dir(index)):
            with sej.open_queue(source.dir(index), "jobs") as queue:
                while items := queue.get_many(1000, timeout=0):
                    for item in items:
                        item.done()
    target = shard.Path(tmp_path / "t", "orders", 1)
    assert shard.reshard(source, target).readers == ["jobs"]
    for path in target.dirs():
        with sej.open_queue(path, "jobs") as queue:
            assert queue.get(timeout=0) is None


def test_a_target_that_is_gone_is_not_called_done(source: shard.Path, tmp_path: FilePath) -> None:
    target = shard.Path(tmp_path / "t", "orders", 1)
    done = shard.reshard(source, target)
    shutil.move(target.dir(1), tmp_path / "elsewhere")
    with pytest.raises(sej.SejError, match="was complete, but this shard of the new journal is lost") as caught:
        shard.reshard(source, target)
    assert str(caught.value.path) == target.dir(1)
    shutil.move(tmp_path / "elsewhere", target.dir(1))
    assert shard.reshard(source, target) == done


def test_an_invalid_readers_name_is_refused_before_anything_is_copied(source: shard.Path, tmp_path: FilePath) -> None:
    odd = next(FilePath(path) for path in source.dirs() if os.path.exists(path)) / "ofs" / "my reader.ofs"
    odd.write_bytes(bytes(8))
    target = shard.Path(tmp_path / "t", "orders", 1)
    with pytest.raises(sej.InvalidNameError, match="'my reader'"):
        shard.reshard(source, target, progress=lambda done, total: pytest.fail("something was copied"))
    odd.unlink()
    assert shard.reshard(source, target).messages == 1000


# --- A sync fails, the reshard is called again, and later the power goes: what was copied is on the medium


def test_a_copy_that_is_finished_by_a_second_run_is_on_the_medium(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resharding, "_publish", lambda *_: None)  # this disk renames no directories
    source, target = shard.Path("/s", "a", 1), shard.Path("/t", "b", 2)
    for k in itertools.count(1):
        inner = CrashDisk()
        with shard.Writer(source, disk=inner) as writer:
            writer.append_many([b"%d" % n for n in range(40)], [b"key %d" % n for n in range(40)])
        first = FaultyOnly(inner, "sync", k)
        with contextlib.suppress(OSError, sej.SejError):
            shard.reshard(source, target, disk=first)
        inner.unlock()  # that process ends
        shard.reshard(source, target, disk=inner)
        left = inner.crash()
        with shard.Scanner(resharding.staging(target), disk=left) as scanner:
            found = {bytes(message.value) for _, message in scanner}
        assert found == {b"%d" % n for n in range(40)}, k
        if first.failed is None:
            break
    assert k > 3


class Directories(OsDisk):
    """Fails to sync a directory once a shard was moved into it, and notes what is synced after that."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.moved = False
        self.synced: list[str] = []

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        if not self.moved and os.path.dirname(os.fspath(target)) == self.root:
            self.moved = True
            os.replace(source, target)
            raise OSError(5, "the directory could not be synced", self.root)
        super().rename(source, target)

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        self.synced.append(os.fspath(path))
        super().sync_dir(path)


def test_a_shard_whose_new_name_may_be_lost_is_named_durably_by_the_second_run(tmp_path: FilePath) -> None:
    source, target = shard.Path(tmp_path, "a", 0), shard.Path(tmp_path / "new", "b", 0)
    with shard.Writer(source) as writer:
        writer.append_many([b"1", b"2"], [b"k", b"k"])
    disk = Directories(os.fspath(target.root))
    with pytest.raises(OSError, match="could not be synced"):
        shard.reshard(source, target, disk=disk)
    assert disk.moved
    disk.synced.clear()
    assert shard.reshard(source, target, disk=disk).messages == 2
    assert os.fspath(target.root) in disk.synced


def test_what_was_copied_is_durable_in_the_source_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's writer was killed. After a power failure its successor must not append in the place of a copy."""
    monkeypatch.setattr(resharding, "_publish", lambda *_: None)  # this disk renames no directories
    source, target = shard.Path("/s", "a", 0), shard.Path("/t", "b", 0)
    disk = CrashDisk()
    killed = sej.Writer(source.dir(0), disk=disk)
    killed.append_many([b"%d" % n for n in range(4)])
    killed.end.abandon()
    since = len(disk.trace)
    shard.reshard(source, target, disk=disk)
    seen = set()
    for crash in disk.crash_states(since=since):
        left = crash.disk
        state = frozenset(item for item in left.files().items() if item[0].startswith(source.root) or "plan" in item[0])
        if state in seen:
            continue
        seen.add(state)
        with sej.Writer(source.dir(0), disk=left) as writer:
            writer.append_many([b"later", b"last"])
        with contextlib.suppress(sej.SejError):  # an error says that messages are missing in the target
            shard.reshard(source, target, disk=left)
            with shard.Scanner(resharding.staging(target), disk=left) as scanner:
                assert {b"later", b"last"} <= {message.value for _, message in scanner}, crash.step
    assert len(seen) > 1
