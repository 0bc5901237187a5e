"""A sync fails, the reshard is called again, and later the power goes: what was copied is on the medium."""

import contextlib
import itertools
import os
from pathlib import Path as FilePath

import pytest

import sej
import shard
from sej.system.disk import OsDisk
from shard import resharding
from tests.crash.disk import CrashDisk, FaultyOnly


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
