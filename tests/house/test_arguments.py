"""Every argument is checked when it is given: nonsense is refused by the call, with an error that names the argument.

Each case is a public function with arguments that it takes. One test per case puts nonsense in the place of each
argument in turn; what kind of nonsense follows from the argument's annotation.
"""

import copy
import inspect
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import sej
import sej.aio
from sej.errors import SejError
from sej.queue import JournalQueue
from sej.writer import Writer as _Writer

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
        item = self.queue.get(timeout=0)
        assert item is not None
        self.item = item
        self.stack = stack

    def new(self, name: str) -> str:
        return str(self.path / name)


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
    "sej.Journal.merge": lambda t: Case(sej.Journal(t.journal).merge, {"min_bytes": 0}),
    "sej.Journal.repair": lambda t: Case(sej.Journal(t.journal).repair, {"dry_run": True}),
    "sej.Journal.tail": lambda t: Case(sej.Journal(t.journal).tail, {}),
    "sej.Journal.verify": lambda t: Case(sej.Journal(t.journal).verify, {}),
    "sej.Retention": lambda t: Case(sej.Retention, {}),
    "sej.Consumer": lambda t: Case(sej.Consumer, {"path": t.journal, "name": "consumer"}),
    "sej.Consumer.run": lambda t: Case(sej.Consumer(t.journal, "run").run, {"handler": print, "timeout": 0.0}),
    "sej.Consumer.run_batches": lambda t: Case(
        sej.Consumer(t.journal, "run").run_batches, {"handler": print, "timeout": 0.0}
    ),
    "sej.Writer.append": lambda t: Case(t.writer.append, {"value": b"v"}, _Writer.append),
    "sej.Writer.append_many": lambda t: Case(t.writer.append_many, {"values": [b"v"]}),
    "sej.Writer.append_messages": lambda t: Case(t.writer.append_messages, {"messages": []}),
    "sej.Writer.append_once": lambda t: Case(t.writer.append_once, {"name": "batch", "number": 0, "values": [b"v"]}),
    "sej.Writer.last_batch": lambda t: Case(t.writer.last_batch, {"name": "batch"}),
    "sej.Writer.publish": lambda t: Case(t.writer.publish, {"values": [b"v"]}),
    "sej.SharedWriter.append": lambda t: Case(t.shared.append, {"value": b"v"}),
    "sej.SharedWriter.append_many": lambda t: Case(t.shared.append_many, {"values": [b"v"]}),
    "sej.open_queue": lambda t: Case(sej.open_queue, {"path": t.new("q")}),
    "sej.open_queue, options": lambda t: Case(sej.open_queue, {"path": t.new("q")}, JournalQueue),
    "sej.open_queue, writer": lambda t: Case(sej.open_queue, {"path": t.new("q")}, _without(sej.SharedWriter, "disk")),
    "sej.WorkQueue.put": lambda t: Case(t.queue.put, {"value": b"v"}),
    "sej.WorkQueue.put_many": lambda t: Case(t.queue.put_many, {"values": [b"v"]}),
    "sej.WorkQueue.get": lambda t: Case(t.queue.get, {"timeout": 0}),
    "sej.WorkQueue.get_many": lambda t: Case(t.queue.get_many, {"n": 1, "timeout": 0}),
    "sej.WorkQueue.done_many": lambda t: Case(t.queue.done_many, {"items": []}),
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
}

NONE_IS_FINE = {("sej.WorkQueue.put", "key")}
NO_INPUT = {
    "DeadLetter", "FIRST", "Gap", "Item", "LAST", "Message", "NO_TIMESTAMP", "Problem", "Recovery", "Repair", "Stats",
    "WorkQueue",
}  # fmt: skip
"""Results and constants; a Message is checked when it is appended."""


def _without(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """A function with the same signature but for these parameters."""
    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name not in names]

    def like() -> None: ...

    like.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return like


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
    if re.search(r"\bfloat\b", text):
        yield from ("1h", NAN, True)
    elif re.search(r"\bint\b", text) and "Sequence" not in text:
        yield from ("64M", 1.5, b"1")
    if "PathLike" in text:
        yield from (5, "", b"journal")
    elif re.search(r"\bstr\b", text) and "Collection" not in text:
        yield from (5, b"x")
    if re.search(r"\bbool\b", text):
        yield from ("yes", 2)
    if re.search(r"\bbytes\b|BytesLike", text):
        yield from ("text", 5)


@pytest.fixture
def things(tmp_path: Path) -> Iterator[Things]:
    with ExitStack() as stack:
        yield Things(tmp_path, stack)


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
        assert isinstance(parameter.annotation, str)
        for value in nonsense(parameter.annotation):
            if value is None and (name, parameter.name) in NONE_IS_FINE:
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
                close = getattr(result, "close", None)
                if close is not None and not inspect.iscoroutinefunction(close):
                    close()
    assert not wrong, "\n".join(wrong)
    assert tree(things.path) == before


def test_every_public_function_has_its_case() -> None:
    public = {f"sej.{name}" for name in sej.__all__ if name not in NO_INPUT and not name.endswith("Error")}
    assert public <= {*CASES}


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
        (lambda path: sej.aio.Writer(path, segment_size=5), "a writer has no option 'segment_size'"),
    ],
    ids=range(6),
)
def test_a_misspelt_option_is_refused_and_the_right_one_suggested(
    call: Callable[[Path], Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        call(tmp_path / "q")
    assert not list(tmp_path.iterdir())


def test_a_value_that_needs_a_serializer_says_so(things: Things) -> None:
    for put in (lambda: things.queue.put({"a": 1}), lambda: things.queue.put_many([b"fine", {"a": 1}])):
        with pytest.raises(TypeError, match=r"value must be bytes, not dict: .*serializer='json'"):
            put()


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy])
def test_what_holds_files_is_not_pickled(way: Callable[[Any], Any], things: Things) -> None:
    for each in (things.writer, things.shared, things.scanner, things.offset, things.queue, things.item,
                 sej.QueueAdapter(things.queue), sej.aio.Writer(things.new("w"))):  # fmt: skip
        with pytest.raises(TypeError, match=r"sej\.\w+ cannot be pickled or copied: .* open it again"):
            way(each)


def test_an_empty_path_makes_no_journal_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (sej.Writer, sej.SharedWriter, sej.Scanner, sej.Journal, sej.open_queue, sej.aio.Writer):
        with pytest.raises(ValueError, match=r"path must be .*got an empty path"):
            call("")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opener", [sej.Writer, sej.SharedWriter, sej.open_queue])
def test_a_directory_of_another_program_is_left_alone(opener: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "id").write_bytes(b"7\n")
    (tmp_path / "src").mkdir()
    before = tree(tmp_path)
    with pytest.raises(sej.NotAJournalError, match=r"holds 'src' and has no jnl/: it is not a journal") as raised:
        opener(tmp_path)
    assert raised.value.path == str(tmp_path)
    (tmp_path / "jnl").mkdir()
    with pytest.raises(sej.NotAJournalError, match="20 bytes, and this is a file of 2 bytes") as raised:
        opener(tmp_path)
    assert raised.value.path == str(tmp_path / "id")
    assert tree(tmp_path) == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["id", "jnl", "src"]
