"""A process that forks as uWSGI does: in C, so that none of Python's hooks runs.

This module is also the program: `python -m tests.crash.test_forks FOLDER`. Each call of each object is the first one of
a child of its own. It prints those that were not refused.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hub
import kestrel
import sej
import shard
from kestrel import segmented
from sej.system.watch import Watch
from tests.house.house import ROOT, run

REFUSED, DONE = 3, 4
Calls = list[Callable[[], object]]


def forked(call: Callable[[], object]) -> int:
    """Return how a call ends that is the first one of a child."""
    child = ctypes.PyDLL(None).fork()
    if child == 0:
        try:
            call()
        except sej.ClosedError:
            os._exit(REFUSED)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(5)
        os._exit(DONE)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def content(root: Path) -> dict[str, bytes]:
    """Return every file."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def everything(root: Path, opened: ExitStack) -> Iterator[tuple[Any, Calls]]:
    """Yield each object, or None if its end is not tested, and calls of it."""

    def use(thing: Any) -> Any:
        return opened.enter_context(thing)

    def appends(w: Any) -> Calls:
        w.append(b"parent")
        return [partial(w.append, b"x"), partial(w.append_many, [b"x"])]

    for durability in ("buffer", "os", "disk"):
        w = use(sej.Writer(root / durability, durability=durability))
        yield w, [*appends(w), partial(w.append_once, "n", 1, [b"x"]), w.flush, w.sync]
    s = use(sej.SharedWriter(root / "shared"))
    yield s, appends(s)
    t = use(shard.Writer(shard.Path(str(root), "shards", 1)))
    t.append(b"parent")
    both = [partial(t.append_many, [b"x"], [b""]), partial(t.append_many, (b"x",), (b"",))]
    yield t, [partial(t.append, b"x"), *both, t.flush, t.sync]
    store = use(hub.Store(root / "hub"))
    put = partial(store.put, "client", "j")
    put([sej.Message(0, 1, 0, b"", b"v")])
    yield None, [partial(put, [sej.Message(1, 1, 0, b"", b"v")])]
    q = use(sej.open_queue(root / "queue"))
    q.put_many([b"a", b"b"])
    item = q.get(timeout=0)
    calls = [partial(q.put, b"x"), partial(q.get, timeout=0), partial(q.peek, 1)]
    yield q, [*calls, item.done, item.retry, q.stats, q.pause, q.redrive, q.sync]
    o = use(sej.Offset(root / "os", "reader"))
    yield o, [partial(o.commit, 1), partial(o.reset, 0)]
    k, g = use(kestrel.Queue(root / "kestrel", "q")), use(segmented.Queue(root / "segmented", "q"))
    for each in (k, g, k, g):
        each.put(b"a")
    (xid, _), reader = k.reserve(), g.reader()
    found = reader.get()
    yield k, [partial(k.put, b"x"), k.get, partial(k.confirm, xid), k.reserve, k.flush]
    yield g, [partial(g.put, b"x"), partial(reader.commit, found.id), reader.get, g.checkpoint]


def main(root: Path) -> None:
    """Do it."""
    with ExitStack() as opened:
        for thing, calls in everything(root, opened):
            before = content(root)
            for call in calls:
                if (end := forked(call)) != REFUSED:
                    print(f"{call}: {end}")
            if thing is not None and (end := forked(thing.close)) != DONE:
                print(f"{thing} close: {end}")
            if content(root) != before:
                print(f"{thing or calls}: files changed")
        watch = Watch(root)
        watch.wait(0)

        def wait() -> None:
            (root / "new").touch()
            assert watch.wait(30) and not watch.polling

        if forked(wait) != DONE or not watch.wait(30):
            print("Watch: an event was read by another process")
        before = content(root)
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            sys.exit(DONE)  # closes everything
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != DONE or content(root) != before:
            print("a child's end changed something")
        with suppress(sej.LockedError):
            sej.Writer(root / "os")
            print("a child released the parent's lock")


@pytest.mark.both_codecs
@pytest.mark.parametrize("codec", ["", "python"])
def test_a_child_that_was_forked_in_c_is_refused_before_it_changes_anything(codec: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.crash.test_forks", str(tmp_path)]
    done = run(command, ROOT, SEJ_CODEC=codec)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
