"""Every argument is checked when it is given: nonsense is refused by the call, with an error that names the argument.

Each case is a public function with arguments that it takes. One test per case puts nonsense in the place of each
argument in turn; what kind of nonsense follows from the argument's annotation.
"""

import ast
import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, cast

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
from sej.checks import RULES
from sej.errors import SejError
from sej.queue.journal_queue import JournalQueue
from sej.writing.writer import Writer as _Writer
from tests.house.house import ROOT, sources

NAN = float("nan")


class Case(NamedTuple):
    """A function, arguments that it takes, and the function whose signature says what they may be."""

    call: Callable[..., Any]
    good: dict[str, Any]
    like: Callable[..., Any] | None = None


class Things:
    """A journal, and what is open over it."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.journal = str(path / "journal")
        with sej.Writer(self.journal) as writer:
            writer.append_many([b"a", b"b", b"c"])
        self.writer = stack.enter_context(sej.Writer(path / "other"))
        self.shared = stack.enter_context(sej.SharedWriter(path / "shared"))
        self.shared.append(b"a")
        self.scanner = stack.enter_context(sej.Scanner(self.journal))
        self.offset = stack.enter_context(sej.Offset(self.journal, "reader"))
        self.queue = stack.enter_context(sej.open_queue(path / "queue"))
        self.queue.put_many([b"1", b"2"])
        items = stack.enter_context(sej.open_queue(path / "items"))
        items.put(b"leased, so that no call waits for the end of its lease")
        item = items.get(timeout=0)
        assert item is not None
        self.item = item
        self.tree = shard.Path(path / "tree", "t", 1)
        with shard.Writer(self.tree) as parts:
            parts.append(b"v", b"k")
        self.new_tree = shard.Path(self.new("t"), "p", 1)
        self.store = stack.enter_context(hub.Store(path / "hub"))
        self.store.put("client", "journal", [sej.Message(0, 0, 0, b"", b"v")])
        self.client = stack.enter_context(hub.wire.Client("127.0.0.1:1"))
        (path / "jobs.tq").write_bytes(b"-one\n")
        with kestrel.Queue(path / "spool", "cars") as cars:
            cars.put(b"v")
        with segmented.Queue(path / "spool3", "cars") as more:
            more.put(b"v")

    def new(self, name: str) -> str:
        return str(self.path / name)

    def cars(self, folder: str, **more: Any) -> dict[str, Any]:
        return {"directory": self.new(folder), "name": "cars", **more}


def _without(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """A function with the same signature but for these parameters."""
    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name not in names]

    def like() -> None: ...

    like.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return like


def _listed(function: Any, good: dict[str, Any]) -> Case:
    """A function whose arguments are checked when its result is read."""
    return Case(lambda **given: list(function(**given)), good, function)


RUN = {"handler": print, "timeout": 0.0}
SHARED_OPTIONS = _without(sej.SharedWriter, "disk", "token")
CASES: dict[str, Callable[[Things], Case]] = {
    "sej.Writer": lambda t: Case(sej.Writer, {"path": t.new("w")}),
    "sej.SharedWriter": lambda t: Case(sej.SharedWriter, {"path": t.new("w")}),
    "sej.Scanner": lambda t: Case(sej.Scanner, {"path": t.journal}),
    "sej.Scanner.read": lambda t: Case(t.scanner.read, {}),
    "sej.Scanner.prefetch": lambda t: Case(t.scanner.prefetch, {}),
    "sej.Scanner.seek": lambda t: Case(t.scanner.seek, {"offset": 0}),
    "sej.Scanner.seek_time": lambda t: Case(t.scanner.seek_time, {"timestamp": 0}),
    "sej.Offset": lambda t: Case(sej.Offset, {"path": t.journal, "name": "another"}),
    "sej.Offset.commit": lambda t: Case(t.offset.commit, {"offset": 1}),
    "sej.Offset.reset": lambda t: Case(t.offset.reset, {"offset": 1}),
    "sej.read_offset": lambda t: Case(sej.read_offset, {"path": t.journal, "name": "reader"}),
    "sej.dead_letters": lambda t: Case(sej.dead_letters, {"path": t.journal}),
    "sej.Journal": lambda t: Case(sej.Journal, {"path": t.journal}),
    "sej.Journal.clean": lambda t: Case(sej.Journal(t.journal).clean, {}),
    "sej.Journal.find_time": lambda t: Case(sej.Journal(t.journal).find_time, {"timestamp": 0}),
    "sej.Journal.repair": lambda t: Case(sej.Journal(t.journal).repair, {"dry_run": True}),
    "sej.Journal.tail": lambda t: Case(sej.Journal(t.journal).tail, {}),
    "sej.Journal.verify": lambda t: Case(sej.Journal(t.journal).verify, {}),
    "sej.Retention": lambda t: Case(sej.Retention, {}),
    "sej.Consumer": lambda t: Case(sej.Consumer, {"path": t.journal, "name": "consumer"}),
    "sej.Consumer.run": lambda t: Case(sej.Consumer(t.journal, "run").run, RUN),
    "sej.Consumer.run_batches": lambda t: Case(sej.Consumer(t.journal, "run").run_batches, RUN),
    "sej.Writer.append": lambda t: Case(t.writer.append, {"value": b"v"}, _Writer.append),
    "sej.Writer.append_many": lambda t: Case(t.writer.append_many, {"values": [b"v"]}),
    "sej.Writer.append_messages": lambda t: Case(t.writer.append_messages, {"messages": []}),
    "sej.Writer.append_once": lambda t: Case(t.writer.append_once, {"name": "batch", "number": 0, "values": [b"v"]}),
    "sej.SharedWriter.append": lambda t: Case(t.shared.append, {"value": b"v"}),
    "sej.SharedWriter.append_many": lambda t: Case(t.shared.append_many, {"values": [b"v"]}),
    "sej.open_queue": lambda t: Case(sej.open_queue, {"path": t.new("q")}),
    "sej.open_queue, options": lambda t: Case(sej.open_queue, {"path": t.new("q")}, JournalQueue),
    "sej.open_queue, writer": lambda t: Case(sej.open_queue, {"path": t.new("q")}, SHARED_OPTIONS),
    "sej.work": lambda t: Case(sej.work, {"queue": t.queue, "handler": print, "until_empty": True}),
    "sej.WorkQueue.put": lambda t: Case(t.queue.put, {"value": b"v"}),
    "sej.WorkQueue.put_many": lambda t: Case(t.queue.put_many, {"values": [b"v"]}),
    "sej.WorkQueue.get": lambda t: Case(t.queue.get, {"timeout": 0}),
    "sej.WorkQueue.get_many": lambda t: Case(t.queue.get_many, {"n": 1, "timeout": 0}),
    "sej.WorkQueue.done_many": lambda t: Case(t.queue.done_many, {"items": []}),
    "sej.WorkQueue.requeue": lambda t: Case(t.queue.requeue, {"offset": 0}),
    "sej.WorkQueue.cancel": lambda t: Case(t.queue.cancel, {"offset": 99}),
    "sej.WorkQueue.peek": lambda t: Case(t.queue.peek, {}),
    "sej.WorkQueue.items": lambda t: Case(t.queue.items, {}),
    "sej.WorkQueue.wait_empty": lambda t: Case(t.queue.wait_empty, {"timeout": 0}),
    "sej.WorkQueue.redrive": lambda t: Case(t.queue.redrive, {}),
    "sej.Item.retry": lambda t: Case(t.item.retry, {}),
    "sej.Item.fail": lambda t: Case(t.item.fail, {}),
    "sej.Item.extend": lambda t: Case(t.item.extend, {"lease_s": 1.0}),
    "sej.QueueAdapter": lambda t: Case(sej.QueueAdapter, {"work": t.queue}),
    "sej.QueueAdapter.put": lambda t: Case(sej.QueueAdapter(t.queue).put, {"item": b"v"}),
    "sej.QueueAdapter.get": lambda t: Case(sej.QueueAdapter(t.queue).get, {"timeout": 0}),
    "sej.QueueAdapter.join": lambda t: Case(sej.QueueAdapter(t.queue).join, {"timeout": 0}),
    "sej.AsyncQueue": lambda t: Case(sej.AsyncQueue, {"work": t.queue}),
    "sej.aio.Writer": lambda t: Case(sej.aio.Writer, {"path": t.new("w")}, sej.Writer),
    "sej.aio.Scanner": lambda t: Case(sej.aio.Scanner, {"path": t.journal}, sej.Scanner),
    "sej.aio.Offset": lambda t: Case(sej.aio.Offset, {"path": t.journal, "name": "reader"}, sej.Offset),
    "shard.Path": lambda t: Case(shard.Path, {"root": t.new("t"), "prefix": "p", "bits": 1}),
    "shard.Path.dir": lambda t: Case(t.tree.dir, {"index": 0}),
    "shard.Path.index": lambda t: Case(t.tree.index, {"key": b"k"}),
    "shard.Path.parse": lambda t: Case(shard.Path.parse, {"path": t.tree.dir(0)}),
    "shard.index_of": lambda t: Case(shard.index_of, {"key": b"k", "bits": 1}),
    "shard.Writer": lambda t: Case(shard.Writer, {"path": t.new_tree}),
    "shard.Writer, options": lambda t: Case(shard.Writer, {"path": t.new_tree}, _without(sej.Writer, "path")),
    "shard.Scanner": lambda t: Case(shard.Scanner, {"path": t.tree}),
    "shard.Worker": lambda t: Case(shard.Worker, {"path": t.tree, "name": "worker"}),
    "shard.lag": lambda t: Case(shard.lag, {"path": t.tree, "name": "worker"}),
    "shard.check": lambda t: Case(shard.check, {"root": t.tree.root}),
    "shard.find": lambda t: Case(shard.find, {"root": t.tree.root}),
    "shard.watch": lambda t: Case(shard.watch, {"root": t.tree.root}),
    "shard.reshard": lambda t: Case(shard.reshard, {"source": t.tree, "target": shard.Path(t.tree.root, "u", 1)}),
    "hub.Store": lambda t: Case(hub.Store, {"root": t.new("h")}),
    "hub.Store.get": lambda t: Case(t.store.get, {"client_id": "client", "journal_dir": "journal", "offset": 0}),
    "hub.Store.end_offset": lambda t: Case(t.store.end_offset, {"client_id": "client", "journal_dir": "journal"}),
    "hub.Merge": lambda t: Case(hub.Merge, {"root": t.store.root, "reader": "merge"}),
    "hub.clean": lambda t: Case(hub.clean, {"root": t.store.root}),
    "hub.stats": lambda t: Case(hub.stats, {"root": t.store.root}),
    "hub.wire.Client": lambda t: Case(hub.wire.Client, {"address": "127.0.0.1:1"}),
    "hub.wire.Server": lambda t: Case(hub.wire.Server, {"store": t.store, "address": "127.0.0.1:0"}),
    "hub.wire.Reader": lambda t: Case(
        hub.wire.Reader, {"client": t.client, "name": "r", "client_id": "EWR", "journal_dir": "orders"}
    ),
    "hub.wire.Copier": lambda t: Case(hub.wire.Copier, {"path": t.journal, "client": t.client}),
    "hub.wire.Tokens": lambda t: Case(hub.wire.Tokens, {"source": []}),
    "hub.wire.ClientTLS": lambda t: Case(
        lambda **given: hub.wire.Client("127.0.0.1:1", tls=hub.wire.ClientTLS(**given)), {}, hub.wire.ClientTLS
    ),
    "hub.wire.ServerTLS": lambda t: Case(
        lambda **given: hub.wire.Server(t.store, "127.0.0.1:0", tls=hub.wire.ServerTLS(**given)),
        {"certificate": t.new("jobs.tq"), "key": t.new("jobs.tq")},
        hub.wire.ServerTLS,
    ),
    "pipeline.count": lambda t: Case(pipeline.count, {"root": t.journal}),
    "pipeline.table": lambda t: Case(pipeline.table, {"paths": t.journal}),
    "pipeline.follow": lambda t: Case(pipeline.follow, {"paths": t.journal}),
    "pipeline.session": lambda t: Case(pipeline.session, {}),
    "textqueue.TextQueue": lambda t: Case(textqueue.TextQueue, {"path": t.new("other.tq")}),
    "textqueue.check": lambda t: Case(textqueue.check, {"path": t.new("jobs.tq")}),
    "kestrel.Queue": lambda t: Case(kestrel.Queue, t.cars("k")),
    "kestrel.pack": lambda t: Case(kestrel.pack, t.cars("spool")),
    "kestrel.read_journal": lambda t: _listed(kestrel.read_journal, {"path": t.new("spool/cars")}),
    "kestrel.replay": lambda t: Case(kestrel.replay, t.cars("spool")),
    "kestrel.export": lambda t: Case(kestrel.export, t.cars("spool", writer=t.writer)),
    "kestrel.import_": lambda t: Case(kestrel.import_, t.cars("k", messages=[])),
    "kestrel.segmented.Queue": lambda t: Case(segmented.Queue, t.cars("k")),
    "kestrel.segmented.export": lambda t: Case(segmented.export, t.cars("spool3", writer=t.writer)),
    "kestrel.segmented.import_": lambda t: Case(segmented.import_, t.cars("k", messages=[])),
    "kestrel.segmented.load": lambda t: Case(segmented.load, t.cars("spool3")),
    "kestrel.segmented.read_reader_file": lambda t: Case(segmented.read_reader_file, {"path": t.new("none")}),
    "kestrel.segmented.read_writer_file": lambda t: _listed(segmented.read_writer_file, {"path": t.new("none")}),
}

EXCEPTIONS = {("sej.WorkQueue.put", "key", None), ("shard.Path.parse", "path", "")}
"""None is not a key, and an empty path is not the name of a shard."""
NO_INPUT = {
    sej: {"DeadLetter", "FIRST", "Gap", "Item", "LAST", "Limit", "Message", "NO_TIMESTAMP", "Problem", "QueuedItem",
          "Recovery", "Repair", "ResultHandle", "Schedule", "Schedules", "Stats", "WorkQueue"},
    shard: {"Found", "Lag", "Problem", "Resharded", "Tree", "TreeWatch"},
    hub: {"JournalStats", "Source"},
    hub.wire: {"Listed", "Progress", "JournalState", "Rows", "make_token"},
    textqueue: {"Claim", "Conflict", "Message", "MessageStatus", "Problem", "QueueItem"},
    kestrel: {"Counters", "Damage", "Item", "Moved", "Operation", "State", "segmented"},
    segmented: {"Bookmark", "Item", "Reader", "State"},
    pipeline: {"Arrived", "Behind", "Lag", "Stream", "Table", "register", "spark_conf"},
}  # fmt: skip
"""By package: results, constants and what a session of Spark's is for; a Message is checked when it is appended."""


def nonsense(annotation: str) -> Iterator[Any]:
    """Values that no argument of this annotation can be."""
    text = annotation.strip("'\"")
    if text == "Any":
        return
    yield object()
    if "None" not in text:
        yield None
    if "Callable" in text:
        yield "a function"
        return
    if re.search(r"\bSeconds\b", text):
        yield from ("soon", "-1s", "inf", NAN, True, b"1h")
    elif re.search(r"\bfloat\b", text):
        yield from ("1h", NAN, True)
    elif re.search(r"\bint\b", text) and not re.search("Sequence|Iterable|Mapping", text):
        yield from ("64M", 1.5, b"1")
    if "PathLike" in text:
        yield from (5, "", b"journal")
    elif re.search(r"\bstr\b", text) and not re.search("Collection|Mapping", text):
        yield from (5, b"x")
    if re.search(r"\bbool\b", text):
        yield from ("yes", 2)
    if re.search(r"\bbytes\b|BytesLike", text):
        yield from ("text", 5)


@pytest.fixture
def things(tmp_path: Path) -> Iterator[Things]:
    with ExitStack() as stack:
        yield Things(tmp_path, stack)


def close(result: Any) -> None:
    """Close what a call has opened."""
    closing = getattr(result, "close", None)
    if closing is not None and not inspect.iscoroutinefunction(closing):
        closing()


def tree(path: Path) -> list[tuple[str, bytes]]:
    return sorted((str(each), each.read_bytes()) for each in path.rglob("*") if each.is_file())


@pytest.mark.parametrize("name", CASES)
def test_nonsense_is_refused_by_the_call_and_the_error_names_the_argument(name: str, things: Things) -> None:
    case = CASES[name](things)
    before = tree(things.path)
    wrong = []
    for parameter in inspect.signature(case.like or case.call).parameters.values():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL) or parameter.name == "self":
            continue
        annotation = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)
        for value in nonsense(annotation):
            if (name, parameter.name, value) in EXCEPTIONS:
                continue
            try:
                result = case.call(**{**case.good, parameter.name: value})
            except (TypeError, ValueError, SejError) as error:
                if not re.search(rf"\b({parameter.name}|{parameter.name.removesuffix('s')})\b", str(error)):
                    wrong.append(f"{parameter.name}={value!r}: not named in: {error}")
            except Exception as error:
                wrong.append(f"{parameter.name}={value!r}: {type(error).__name__}: {error}")
            else:
                wrong.append(f"{parameter.name}={value!r} was taken")
                close(result)
    assert not wrong, "\n".join(wrong)
    assert tree(things.path) == before


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("pipeline.session")])
def test_a_duration_may_be_a_text(name: str, things: Things) -> None:
    case = CASES[name](things)
    for parameter in inspect.signature(case.like or case.call).parameters.values():
        if parameter.name.endswith(("_s", "timeout")):
            assert re.search(r"\bSeconds\b|\bfloat \| str\b", str(parameter.annotation)), parameter
            with suppress(UnavailableError):  # the duration was taken; no hub is there
                result = case.call(**{**case.good, parameter.name: "0.01s"})
                close(result)


@pytest.mark.parametrize("package", NO_INPUT, ids=lambda package: package.__name__)
def test_every_public_function_has_its_case(package: ModuleType) -> None:
    public = {name for name in package.__all__ if not _is_error(getattr(package, name))}
    prefix = f"{package.__name__}."
    assert public - NO_INPUT[package] == {
        name.removeprefix(prefix) for name in CASES if name.startswith(prefix) and name.removeprefix(prefix) in public
    }


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"segment_bytes": 0}, "segment_bytes must be at least 1, got 0"),
        ({"segment_bytes": "64M"}, "segment_bytes must be an int, got '64M' (str)"),
        ({"retention": 60}, "retention must be Retention, got 60 (int)"),
        ({"durability": "fsync"}, "durability must be one of 'buffer', 'os', 'interval', 'disk', got 'fsync'"),
        ({"sync_interval_s": NAN}, "sync_interval_s must be more than 0 seconds, got nan"),
        ({"lock_timeout": -1}, "lock_timeout must be 0 seconds or more, got -1"),
    ],
    ids=str,
)
def test_the_text_says_what_is_expected_and_what_came(arguments: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(text)):
        sej.Writer(tmp_path / "w", **arguments)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda path: sej.open_queue(path, lease=5), "no option 'lease'; did you mean 'lease_s'?"),
        (lambda path: sej.open_queue(path, backend="textqueue", lease=5), "did you mean 'lease_s'?"),
        (lambda path: sej.open_queue(path, backend="kestrel", max_item=5), "did you mean 'max_item"),
        (lambda path: sej.open_queue(path, backend="libkestrel", checkpoint=5), "did you mean 'checkpoint_s'?"),
        (lambda path: sej.open_queue(path, segment_byte=5), "did you mean 'segment_bytes'?"),
        (lambda path: sej.open_queue(path, retries=5), "has no option 'retries'; it has"),
        (lambda path: sej.aio.Writer(path, segment_size=5), "a writer has no option 'segment_size'"),
        (lambda path: shard.Writer(shard.Path(path, "o", 1), durabilty="disk"), "did you mean 'durability'?"),
        (lambda path: sej.QueueAdapter(cast("Any", path)), "work must be a work queue, as sej.open_queue returns it"),
    ],
    ids=range(9),
)
def test_a_misspelt_option_is_refused_and_the_right_one_suggested(
    call: Callable[[Path], Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        call(tmp_path / "q")
    assert not list(tmp_path.iterdir())


def test_a_value_that_needs_a_serializer_says_so(things: Things) -> None:
    for put in (lambda: things.queue.put({"a": 1}), lambda: things.queue.put_many([b"fine", {"a": 1}])):
        with pytest.raises(TypeError, match=r"value must be bytes, got dict; .*serializer='json'"):
            put()


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy])
def test_what_holds_files_is_not_pickled(way: Callable[[Any], Any], things: Things) -> None:
    for each in (things.writer, things.shared, things.scanner, things.offset, things.queue, things.item,
                 sej.QueueAdapter(things.queue), sej.aio.Writer(things.new("w")),
                 sej.aio.Offset(things.journal, "another")):  # fmt: skip
        with pytest.raises(TypeError, match=r"sej\.\w+ cannot be pickled or copied: .* open it again"):
            way(each)


@pytest.mark.parametrize("opener", [sej.Writer, sej.SharedWriter, sej.open_queue])
def test_a_directory_of_another_program_is_left_alone(opener: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "id").write_bytes(b"7\n")
    (tmp_path / "src").mkdir()
    before = tree(tmp_path)
    with pytest.raises(sej.NotAJournalError, match=r"not a journal: it holds 'src' and has no jnl/") as raised:
        opener(tmp_path)
    assert raised.value.path == str(tmp_path)
    (tmp_path / "jnl").mkdir()
    with pytest.raises(sej.NotAJournalError, match="20 bytes, but this is a file of 2 bytes") as raised:
        opener(tmp_path)
    assert raised.value.path == str(tmp_path / "id")
    assert tree(tmp_path) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["id", "jnl", "src"]


def test_a_rule_is_passed_for_names_without_one_only() -> None:
    """A pair of a value and a rule is itself an iterable: ``require`` would take it for the value of such a name."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {keyword.arg}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require"
        for keyword in node.keywords
        if isinstance(keyword.value, ast.Tuple) and keyword.arg in RULES
    ]
    assert not wrong
