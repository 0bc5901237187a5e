"""Every public call that takes seconds takes a duration such as ``"3s"`` too."""

import inspect
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hub
import hub.wire
import kestrel
import pipeline
import sej
import sej.aio
import shard
import textqueue
from hub.errors import UnavailableError
from kestrel import segmented
from tests.house.test_arguments import CASES, NO_INPUT, Case, Things

PACKAGES: list[ModuleType] = [sej, sej.aio, shard, hub, hub.wire, textqueue, kestrel, segmented, pipeline]
_WAIT = "0.01s"


def _takes_seconds(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [each for each in parameters if each.name.endswith(("_s", "timeout"))]


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public function, and every public method of every public class that is not only a result."""
    for package in PACKAGES:
        for name in package.__all__:
            found = getattr(package, name)
            if not inspect.isclass(found):
                if callable(found):
                    yield f"{package.__name__}.{name}", found
                continue
            result = name in NO_INPUT.get(package, ())
            for attribute, method in inspect.getmembers(found, inspect.isfunction):
                if attribute[0] != "_" or (attribute in ("__init__", "__new__") and not result):
                    yield f"{package.__name__}.{name}.{attribute}", method


_INTERNAL = {"hub.wire.Client.call"}
"""For another module of its package."""
SIGNATURES = {name: function for name, function in public() if _takes_seconds(function) and name not in _INTERNAL}


def test_the_packages_have_such_calls() -> None:
    assert {"sej.Writer.__init__", "shard.Worker.run", "kestrel.Queue.peek", "pipeline.follow"} <= set(SIGNATURES)


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_says_that_a_duration_is_taken(name: str) -> None:
    for parameter in _takes_seconds(SIGNATURES[name]):
        assert re.search(r"\bSeconds\b|\bfloat \| str\b", str(parameter.annotation)), f"{name}: {parameter}"


def _kestrel(things: Things) -> kestrel.Queue:
    return kestrel.Queue(things.new("empty"), "cars")


def _claim(things: Things) -> textqueue.Claim:
    claim = textqueue.TextQueue(things.new("jobs.tq"), lease_s="1h").take()
    assert claim is not None
    return claim


METHODS: dict[str, Callable[[Things], Case]] = {
    "shard.Scanner.read": lambda t: Case(shard.Scanner(t.tree).read, {}),
    "shard.TreeWatch.read": lambda t: Case(shard.watch(t.tree.root).read, {}),
    "shard.Worker.run": lambda t: Case(shard.Worker(t.tree, "worker").run, {"handler": print}),
    "shard.Writer, options": lambda t: Case(
        lambda **given: shard.Writer(shard.Path(t.new("u"), "p", 1), durability="interval", **given),
        {},
        lambda sync_interval_s, lock_timeout: None,
    ),
    "hub.Merge.read": lambda t: Case(hub.Merge(t.store.root, "merge").read, {}),
    "hub.clean": lambda t: Case(hub.clean, {"root": t.store.root}, lambda max_age_s: None),
    "hub.wire.Copier.run": lambda t: Case(
        hub.wire.Copier(t.journal, hub.wire.Client("127.0.0.1:1")).run, {"stop": _set()}
    ),
    "hub.wire.Server.wait": lambda t: Case(hub.wire.Server(t.store, "127.0.0.1:0").wait, {}),
    "textqueue.TextQueue.claim": lambda t: Case(textqueue.TextQueue(t.new("jobs.tq")).claim, {}),
    "textqueue.TextQueue.take": lambda t: Case(textqueue.TextQueue(t.new("jobs.tq")).take, {}),
    "textqueue.TextQueue.follow": lambda t: Case(
        lambda **given: list(textqueue.TextQueue(t.new("none.tq"), settle_s="0s").follow(**given)),
        {},
        textqueue.TextQueue.follow,
    ),
    "textqueue.Claim.extend": lambda t: Case(_claim(t).extend, {}),
    "kestrel.Queue.get": lambda t: Case(_kestrel(t).get, {}, lambda timeout: None),
    "kestrel.Queue.peek": lambda t: Case(_kestrel(t).peek, {}),
    "kestrel.Queue.reserve": lambda t: Case(_kestrel(t).reserve, {}, lambda timeout: None),
    "kestrel.Queue.reserve_numbered": lambda t: Case(_kestrel(t).reserve_numbered, {}),
    "kestrel.Queue, sync": lambda t: Case(
        lambda **given: kestrel.Queue(t.new("k"), "q", sync=given["sync_s"]), {}, lambda sync_s: None
    ),
    "kestrel.segmented.Reader.get": lambda t: Case(
        segmented.Queue(t.new("k"), "q").reader().get, {}, lambda timeout: None
    ),
    "kestrel.segmented.Reader.peek": lambda t: Case(segmented.Queue(t.new("k"), "q").reader().peek, {}),
}
"""Calls that are not in the table of arguments."""
CALLS = {name: case for name, case in {**CASES, **METHODS}.items() if not name.startswith("pipeline.session")}


def _set() -> threading.Event:
    stop = threading.Event()
    stop.set()
    return stop


@pytest.mark.parametrize("name", CALLS)
def test_a_duration_is_taken(name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        things = Things(tmp_path, stack)
        case = CALLS[name](things)
        like = case.like or case.call
        for parameter in _takes_seconds(like):
            try:
                result = case.call(**{**case.good, parameter.name: _WAIT})
            except UnavailableError:  # the duration was taken; no hub is there
                continue
            close = getattr(result, "close", None)
            if close is not None and not inspect.iscoroutinefunction(close):
                close()
