"""For any bytes: no byte is lost, only requested changes are made, and no wrong message is changed."""

import os
import re
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.sej.windows import shrunk
from tests.textqueue.claiming import got, lined, plain
from tests.ticks import next_tick
from textqueue import InvalidTextError, Message, MessageMovedError, MessageStatus, TextQueue
from textqueue.checker import check_text
from textqueue.format.parser import (
    CHUNK,
    CONTROLS,
    LINE,
    STATUS_OF,
    Entry,
    chunks,
    encode,
    parse,
    render,
    value_of,
    variables_of,
    whole,
)

ANY = st.binary(max_size=200) | st.lists(
    st.sampled_from(
        [b"-", b"=", b"!", b"#", b" ", b"\\", b"\n", b"\r\n", b"a", b"mutex=  ", b"\xff", b"T", b"\xef\xbb\xbf"]
    ),
    max_size=40,
).map(b"".join)
TEXT = st.text(alphabet=st.characters(exclude_characters="\r", codec="utf-8"), min_size=1, max_size=40)
FUTURE = st.sampled_from(
    [bytes([b]) for b in range(256) if bytes([b]) not in [b"\n", b"\r"] + [bytes([c.byte]) for c in CONTROLS]]
)


@given(ANY)
def test_any_bytes_are_parsed_without_loss(data: bytes) -> None:
    parts = list(parse(data))
    assert b"".join(part.raw for part in parts) == data
    position = 0
    for part in parts:
        assert part.position == position
        position += len(part.raw)


@given(ANY, st.integers(0, 200))
def test_a_prefix_is_parsed_as_in_the_whole(data: bytes, size: int) -> None:
    end = whole(data[:size])
    assert chunks(data[:end]) + chunks(data[end:]) == chunks(data)


@given(ANY)
def test_the_fast_split_into_chunks_equals_the_regular_one(data: bytes) -> None:
    assert chunks(data) == CHUNK.findall(data)


@given(ANY)
def test_a_sound_text_is_found_without_a_look_at_each_message(data: bytes) -> None:
    found = check_text(data, "")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("textqueue.checker._is_sound", lambda data: False)
        assert check_text(data, "") == found


@given(ANY)
def test_every_line_of_an_entry_matches_the_original_document(data: bytes) -> None:
    for part in parse(data):
        if isinstance(part, Entry):
            for line in re.findall(rb"[^\n]*\n|[^\n]+", part.raw):
                assert LINE.fullmatch(line)


@given(
    st.text(max_size=60) | st.binary(max_size=60),
    st.lists(st.text(max_size=20), max_size=3),
    st.sampled_from(list(MessageStatus)),
)
def test_rendered_entries_are_parsed_back(text: str | bytes, variables: list[str], status: MessageStatus) -> None:
    try:
        raw = render(text, variables, status=status)
    except (InvalidTextError, UnicodeEncodeError):
        return
    (entry,) = parse(raw)
    assert isinstance(entry, Entry)
    assert (entry.value, entry.status) == (encode(text), status)
    assert entry.variables == tuple(map(encode, variables))
    assert render(entry.value, entry.variables, status=status, newline=b"\r\n").replace(b"\r\n", b"\n") == raw


@given(st.lists(st.tuples(FUTURE, st.binary(max_size=20).map(lambda b: b.replace(b"\n", b""))), min_size=1, max_size=6))
def test_unknown_control_characters_survive_every_operation(future: list[tuple[bytes, bytes]]) -> None:
    lines = [control + rest + b"\n" for control, rest in future]
    data = b"-first\n\\v=1 \n" + b"".join(line + b"-m\n\\mutex=" + b" " * 30 + b"\n\\retries=2\n" for line in lines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.tq"
        path.write_bytes(data)
        with TextQueue(path) as q:
            first = got(q)
            first["v"] = "2"
            first.mark_as_cleared()
            with q.claim() as m:
                assert m is not None
            try:
                with q.claim():
                    raise OSError
            except OSError:
                pass
            q.append("more")
            q.mark_many(list(q.messages())[:1], MessageStatus.critical)
            assert list(q.messages(set(MessageStatus)))
            q.archive(Path(folder) / "done.tq")
        after = plain(path)
    kept = [line + b"\n" for line in after.split(b"\n") if line and line[0] not in b"-=! \\"]
    assert kept == lines


class Editing(RuleBasedStateMachine):
    """A queue and an editor on one file, in any order, compared with a model of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "jobs.tq"
        self.path.write_bytes(lined(b""))
        self.queues = [TextQueue(self.path), TextQueue(self.path)]
        self.entries: list[bytes] = []
        self.buffer: list[bytes] = []  # the bytes that an editor has read
        self.line = self._line()  # with their generation
        self.done: set[bytes] = set()
        self.held: list[Message] = []
        self.number = 0

    def teardown(self) -> None:
        for q in self.queues:
            q.close()
        self.folder.cleanup()

    @initialize(texts=st.lists(TEXT, max_size=3))
    def begin(self, texts: list[str]) -> None:
        for text in texts:
            self.append(text, 0, True)

    @rule(text=TEXT, which=st.integers(0, 1), room=st.booleans())
    def append(self, text: str, which: int, room: bool) -> None:
        self.number += 1
        variables = [f"id={self.number}"] + (["mutex=" + " " * 30] if room else [])
        self.queues[which].append(text, variables)
        self.entries.append(render(text, variables))

    @rule(which=st.integers(0, 1))
    def read(self, which: int) -> None:
        m = self.queues[which].get_next()
        if m is not None:
            assert m.raw[:1] == b"-"
            self.held.append(m)

    @rule(which=st.integers(0, 1), fails=st.booleans())
    def claim(self, which: int, fails: bool) -> None:
        claim = self.queues[which].take()
        if claim is None:
            assert not any(raw[:1] == b"-" for raw in self.entries)
        elif fails:
            assert claim.failed("no")
        else:
            raw = claim.message.raw
            assert claim.done()
            self._mark(raw)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), status=st.sampled_from([MessageStatus.cleared, MessageStatus.critical]))
    def mark(self, data: st.DataObject, status: MessageStatus) -> None:
        m = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        at = self._find(m.raw)
        try:
            if status is MessageStatus.cleared:
                m.mark_as_cleared()
            else:
                m.mark_as_critical_error()
        except MessageMovedError:
            assert at is None or self.entries[at][:1] not in b"-" + (b"=" if status is MessageStatus.cleared else b"!")
        else:
            assert at is not None
            self.entries[at] = m.raw[:1] + self.entries[at][1:]

    @rule(data=st.data(), by_rename=st.booleans())
    def edit(self, data: st.DataObject, by_rename: bool) -> None:
        entries = list(self.entries)
        what = data.draw(st.sampled_from(["delete", "reorder", "comment", "insert", "stale"]))
        if what == "delete" and entries:
            entries.pop(data.draw(st.integers(0, len(entries) - 1)))
        elif what == "reorder":
            entries = data.draw(st.permutations(entries))
        elif what == "comment" and entries:
            at = data.draw(st.integers(0, len(entries) - 1))
            if entries[at] != b"\n":
                entries[at] = b"#" + entries[at][1:]
        elif what == "insert":
            at = data.draw(st.integers(0, len(entries)))
            entries.insert(at, data.draw(st.sampled_from([b"T future\n", b"# -a\n", b"\n", b"#\n more\n"])))
        saved, line = list(entries), self._line()
        if what == "stale":  # reverts later marks, which the queue makes again; later appends are gone
            saved, entries, line = self.buffer, entries[: len(self.buffer)], self.line
        if by_rename:
            new = self.path.with_name("new")
            new.write_bytes(line + b"".join(saved))
            new.replace(self.path)
        else:
            self.path.write_bytes(line + b"".join(saved))
        self.entries = list(entries)
        self.buffer = list(entries)
        self.queues[0].append("after an edit", [f"id=x{self.number}"])
        self.line = self._line()
        self.entries.append(render("after an edit", [f"id=x{self.number}"]))
        self.number += 1

    @invariant()
    def the_file_is_what_it_must_be(self) -> None:
        assert plain(self.path) == b"".join(self.entries)
        next_tick(self.path)  # a reader may deliver what was marked within the tick of the clock

    def _line(self) -> bytes:
        return self.path.read_bytes()[: len(lined(b""))]

    def _find(self, raw: bytes) -> int | None:
        for at, entry in enumerate(self.entries):
            if entry[1:] == raw[1:]:
                return at
        return None

    def _mark(self, raw: bytes) -> None:
        wanted = value_of(raw), variables_of(raw)[0].data
        for at, entry in enumerate(self.entries):
            if entry[:1] == b"-" and (value_of(entry), variables_of(entry)[0].data) == wanted:
                self.entries[at] = b"=" + entry[1:]
                return
        raise AssertionError(f"claimed a missing message: {raw!r}")


Editing.TestCase.settings = settings(max_examples=2000 if "SEJ_TORTURE_S" in os.environ else 40)
TestEditing = Editing.TestCase


class EditingLarge(Editing):
    """The same with lines and messages that may be larger than a window."""

    WINDOWS: Final = {
        "textqueue.editing.proof": ["_AHEAD_BYTES"],
        "textqueue.editing.queue_file": ["_BLOCK", "_BLOCK_BYTES"],
        "textqueue.editing.message": ["_TAIL_BYTES"],
        "textqueue.format.windows": ["FIRST_WINDOW"],
        "textqueue.cursor": ["FIRST_WINDOW", "WINDOW"],
    }

    def __init__(self) -> None:
        self.windows = ExitStack()
        self.windows.enter_context(shrunk(self.WINDOWS, 1024, 4))
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        self.windows.close()

    @rule(
        width=st.sampled_from([1, 60, 130, 600, 4000]),
        lines=st.sampled_from([0, 0, 1, 3, 300]),
        which=st.integers(0, 1),
        room=st.booleans(),
    )
    def append_large(self, width: int, lines: int, which: int, room: bool) -> None:
        self.append("x" * width + "\n-y" * lines, which, room)

    @rule(which=st.integers(0, 1))
    def all_messages(self, which: int) -> None:
        found = [message.raw for message in self.queues[which].messages(set(MessageStatus))]
        assert found == [raw for raw in chunks(b"".join(self.entries)) if raw[0] in STATUS_OF]

    @rule(which=st.integers(0, 1), data=st.data())
    def mark_many(self, which: int, data: st.DataObject) -> None:
        queued = list(self.queues[which].messages())
        chosen = [message for message in queued if data.draw(st.booleans())]
        raws = [message.raw for message in chosen]
        self.queues[which].mark_many(chosen, MessageStatus.cleared)
        for raw in raws:
            at = self.entries.index(raw)
            self.entries[at] = b"=" + raw[1:]


EditingLarge.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestEditingLarge = EditingLarge.TestCase
