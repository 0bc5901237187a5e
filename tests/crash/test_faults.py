"""The k-th call to the disk fails, for every k: nothing acknowledged is lost, a failed writer stays failed."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import sej
from sej import WriterFailedError
from tests.crash.disk import CrashDisk, Fault, FaultyDisk, faulty
from tests.sej.support import CALLS, STAMP, read_all, values

ROOT = "/j"
FAULTS: list[Fault] = ["eio", "enospc", "short", "sync-loses"]

Said = tuple[list[bytes], list[bytes], int]
"""Every value that was handed in, those that were acknowledged, and the last durable offset that was seen."""


def rows(start: int, count: int, size: int = 8) -> list[bytes]:
    return [b"%03d" % n + b"v" * size for n in range(start, start + count)]


def run(disk: FaultyDisk, durability: Any) -> tuple[Said, bool]:
    """A workload of everything; ends at the first failure. Returns what it said, and whether a call failed."""
    handed: list[bytes] = []
    acknowledged = 0
    durable = 0

    def give(values: list[bytes]) -> list[bytes]:
        handed.extend(values)
        return values

    try:
        w = sej.Writer(ROOT, segment_bytes=150, durability=durability, sync_interval_s=3600.0, disk=disk)
    except (OSError, WriterFailedError):
        return ([], [], 0), True
    calls: list[Callable[[], object]] = [
        lambda: w.append(give(rows(0, 1))[0], timestamp=STAMP),
        lambda: w.append_many(give(rows(1, 6)), timestamp=STAMP),
        lambda: w.append(give(rows(7, 1, 140))[0], timestamp=STAMP),
        lambda: w.sync(),
        lambda: w.append_once("p", 0, give(rows(8, 2)), timestamp=STAMP),
        lambda: w.append_once("p", 1, give(rows(10, 3)), timestamp=STAMP),
        lambda: w.append(give(rows(13, 1))[0], timestamp=STAMP),
        lambda: w.flush(),
    ]
    failed = False
    for call in calls:
        try:
            call()
        except WriterFailedError:
            failed = True
            break
        acknowledged = len(handed)
        durable = w.durable_offset
        assert durability != "disk" or durable == acknowledged
    if failed:
        for later in CALLS.values():
            with pytest.raises(WriterFailedError):
                later(w)
        assert w.durable_offset >= durable
        durable = w.durable_offset
    try:
        w.close()
        durable = w.durable_offset
        acknowledged = len(handed) if not failed else acknowledged
    except WriterFailedError:
        failed = True
    return (handed, handed[:acknowledged], durable), failed


def check(inner: CrashDisk, said: Said, least: int) -> None:
    handed, _, _ = said
    with sej.Writer(ROOT, disk=inner) as w:
        there = values(read_all(ROOT, disk=inner))
        assert there == handed[: len(there)], "a prefix of what was handed in"
        assert len(there) >= least
        assert len(there) not in (9, 11, 12), "append_once: all or nothing"
        assert w.append(b"next") == len(there)
    assert sej.Journal(ROOT, disk=inner).verify() == []


@pytest.mark.filterwarnings("ignore:the index:RuntimeWarning")
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("durability", ["os", "disk", "buffer"])
def test_the_kth_call_fails(durability: Any, fault: Fault, sticky: bool) -> None:
    failures = 0
    for k in itertools.count(1):
        inner = CrashDisk()
        disk = faulty(inner, k, fault, sticky=sticky)
        said, failed = run(disk, durability)
        handed, acknowledged, durable = said
        if disk.failed is None and disk.calls < k:
            break
        failures += failed
        # The process continues or dies: all that reached the kernel is there, except what a failed sync has lost.
        lost = disk.failed == "sync"
        check(inner.crash(keep=True), said, durable if lost or durability == "buffer" else len(acknowledged))
        # The power goes as well.
        check(inner.crash(), said, durable)
        assert failed or len(handed) == 14
    assert k > 40 or fault == "sync-loses"
    assert failures > 10
