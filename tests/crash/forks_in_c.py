"""A program whose process forks as uWSGI does: in C, so that none of Python's hooks runs.

`python -m tests.crash.forks_in_c FOLDER`. Each call of each object is the first one of a child of its own. Prints those
that were not refused.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import hub
import kestrel
import sej
import shard
from kestrel import segmented
from sej.system.watch import Watch

REFUSED, DONE = 3, 4


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


def writers(root: Path, objects: ExitStack) -> Iterator[tuple[str, Any, dict[str, Callable[[], object]]]]:
    """Yield writers of journals."""
    for durability in ("buffer", "os", "disk"):
        w = objects.enter_context(sej.Writer(root / durability, durability=durability))
        w.append(b"parent")
        yield f"Writer {durability}", w, calls_of(w)
    s = objects.enter_context(sej.SharedWriter(root / "shared"))
    s.append(b"parent")
    yield "SharedWriter", s, {"append": lambda: s.append(b"x"), "append_many": lambda: s.append_many([b"x"])}
    path = shard.Path(str(root), "shards", 1)
    t = objects.enter_context(shard.Writer(path))
    t.append(b"parent")
    yield (
        "shard.Writer",
        t,
        {
            "append": lambda: t.append(b"x"),
            "append_many": lambda: t.append_many([b"x"], [b""]),
            "tuple": lambda: t.append_many((b"x",), (b"",)),
            "flush": t.flush,
            "sync": t.sync,
        },
    )
    store = objects.enter_context(hub.Store(root / "hub"))
    store.put("client", "j", [sej.Message(0, 1, 0, b"", b"v")])
    yield "hub.Store", None, {"put": lambda: store.put("client", "j", [sej.Message(1, 1, 0, b"", b"v")])}


def calls_of(w: sej.Writer) -> dict[str, Callable[[], object]]:
    """Return the calls of a writer."""
    return {
        "append": lambda: w.append(b"x"),
        "append_many": lambda: w.append_many([b"x"]),
        "append_once": lambda: w.append_once("n", 1, [b"x"]),
        "flush": w.flush,
        "sync": w.sync,
    }


def others(root: Path, objects: ExitStack) -> Iterator[tuple[str, Any, dict[str, Callable[[], object]]]]:
    """Yield queues and a kept offset."""
    q: Any = objects.enter_context(sej.open_queue(root / "queue"))
    q.put_many([b"a", b"b"])
    item = q.get(timeout=0)
    yield (
        "queue",
        q,
        {
            "put": lambda: q.put(b"x"),
            "get": lambda: q.get(timeout=0),
            "done": item.done,
            "retry": item.retry,
            "peek": lambda: q.peek(1),
            "stats": q.stats,
            "pause": q.pause,
            "redrive": q.redrive,
            "sync": q.sync,
        },
    )
    o = objects.enter_context(sej.Offset(root / "os", "reader"))
    yield "Offset", o, {"commit": lambda: o.commit(1), "reset": lambda: o.reset(0)}
    k = objects.enter_context(kestrel.Queue(root / "kestrel", "q"))
    g = objects.enter_context(segmented.Queue(root / "segmented", "q"))
    for each in (k, g):
        each.put(b"a")
        each.put(b"b")
    xid, reader = k.reserve(), g.reader()
    found = reader.get()
    assert xid is not None and found is not None
    more: dict[str, Callable[[], object]] = {"reserve": k.reserve, "flush": k.flush}
    yield "kestrel.Queue", k, {"put": lambda: k.put(b"x"), "get": k.get, "confirm": lambda: k.confirm(xid[0]), **more}
    more = {"get": reader.get, "checkpoint": g.checkpoint}
    yield "segmented.Queue", g, {"put": lambda: g.put(b"x"), "commit": lambda: reader.commit(found.id), **more}


def main(root: Path) -> None:
    """Do it."""
    with ExitStack() as objects:
        for name, opened, calls in (*writers(root, objects), *others(root, objects)):
            before = content(root)
            for call, do in calls.items():
                if (end := forked(do)) != REFUSED:
                    print(f"{name} {call}: {end}")
            if opened is not None and (end := forked(opened.close)) != DONE:
                print(f"{name} close: {end}")
            if content(root) != before:
                print(f"{name}: files changed")
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


main(Path(sys.argv[1]))
