"""The language server, as an editor uses it: through a client, over the standard input and output of the command."""

import asyncio
import functools
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from tests.cli.command import COMMAND, ENV
from tests.forking import Forkserver, Program
from tests.textqueue.claiming import taken
from textqueue import TextQueue
from textqueue.lsp import Document

pytestmark = pytest.mark.xdist_group("lsp")  # one process imports the server's modules, for all tests
TEXT = "# notes\n more\n-größer 🙂 one\n two\n\\retries=3 \n=done\n!bad\n?odd\n-claimed\n"


@functools.cache
def _forkserver() -> Forkserver:
    return Forkserver("textqueue.lsp._server", "textqueue.commands", options=COMMAND[1:3], env=ENV)


class Editor:
    """A client with one open buffer, of a server of its own."""

    def __init__(self, path: Path) -> None:
        self.client = LanguageClient("test", "1")
        self.path = path
        self.uri = path.as_uri()
        self.document = lsp.TextDocumentIdentifier(self.uri)
        self.published: asyncio.Queue[lsp.PublishDiagnosticsParams] = asyncio.Queue()
        self.refreshed = asyncio.Event()
        self.version = 1
        self.server: Program | None = None

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)  # type: ignore[untyped-decorator]
        def published(params: lsp.PublishDiagnosticsParams) -> None:
            self.published.put_nowait(params)

        @self.client.feature(lsp.WORKSPACE_INLAY_HINT_REFRESH)  # type: ignore[untyped-decorator]
        def refresh(_: Any) -> None:
            self.refreshed.set()

    async def start(self, *, edits: bool = True, fresh: bool = False) -> lsp.InitializeResult:
        if fresh:
            await self.client.start_io(*COMMAND, "tq", "lsp", env=ENV)
        else:
            with socket.create_server(("127.0.0.1", 0)) as listening:
                await self.client.start_tcp(*listening.getsockname())
                theirs, _ = listening.accept()
            with theirs:
                streams = [theirs.fileno(), theirs.fileno(), 2]
                self.server = _forkserver().start(["sej", "tq", "lsp"], streams)
        capabilities = lsp.ClientCapabilities(
            workspace=lsp.WorkspaceClientCapabilities(
                workspace_edit=lsp.WorkspaceEditClientCapabilities(document_changes=edits),
                inlay_hint=lsp.InlayHintWorkspaceClientCapabilities(refresh_support=True),
            )
        )
        result = await self.client.initialize_async(lsp.InitializeParams(capabilities))
        self.client.initialized(lsp.InitializedParams())
        text = self.path.read_text("utf-8")
        item = lsp.TextDocumentItem(self.uri, "textqueue", self.version, text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        return result

    async def problems(self) -> list[tuple[int, int, lsp.DiagnosticSeverity | None, str]]:
        found = (await asyncio.wait_for(self.published.get(), 60)).diagnostics
        return [(one.range.start.line, one.range.start.character, one.severity, one.message) for one in found]

    def change(self, text: str, *places: tuple[int, int]) -> None:
        """Replace the whole buffer, or the text between two places."""
        self.version += 1
        name = lsp.VersionedTextDocumentIdentifier(self.version, self.uri)
        change: lsp.TextDocumentContentChangeEvent = lsp.TextDocumentContentChangeWholeDocument(text)
        if places:
            change = lsp.TextDocumentContentChangePartial(lsp.Range(*[lsp.Position(*one) for one in places]), text)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(name, [change]))

    async def hover(self, line: int) -> list[str]:
        params = lsp.HoverParams(self.document, lsp.Position(line, 0))
        found = await self.client.text_document_hover_async(params)
        assert found is not None
        assert isinstance(found.contents, lsp.MarkupContent)
        return re.sub(r"\d+ s", "N s", found.contents.value).split("\n")

    async def actions(
        self,
        line: int,
        last: int | None = None,
        diagnostics: list[lsp.Diagnostic] | None = None,
        *,
        end: int = 1,
    ) -> dict[str, lsp.CodeAction]:
        where = lsp.Range(lsp.Position(line, 0), lsp.Position(line if last is None else last, end))
        params = lsp.CodeActionParams(self.document, where, lsp.CodeActionContext(diagnostics or []))
        found = await self.client.text_document_code_action_async(params)
        return {one.title: one for one in found or () if isinstance(one, lsp.CodeAction)}

    async def stop(self) -> None:
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()  # type: ignore[no-untyped-call]
        assert self.server is None or self.server.wait(60) == 0


def saved(path: Path) -> str:
    return path.read_text("utf-8")


def cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def applied(action: lsp.CodeAction, text: str) -> str:
    """Apply the edit as an editor does, with columns in UTF-16 units."""
    assert action.edit is not None
    if action.edit.document_changes:
        (change,) = action.edit.document_changes
        assert isinstance(change, lsp.TextDocumentEdit)
        edits = list(change.edits)
    else:
        assert action.edit.changes
        (edits,) = action.edit.changes.values()  # type: ignore[assignment]
    lines = text.split("\n")

    def place(position: lsp.Position) -> int:
        before = lines[position.line].encode("utf-16-le")[: 2 * position.character].decode("utf-16-le")
        return sum(len(line) + 1 for line in lines[: position.line]) + len(before)

    for edit in sorted(edits, key=lambda one: -place(one.range.start)):
        assert isinstance(edit, lsp.TextEdit)
        text = text[: place(edit.range.start)] + edit.new_text + text[place(edit.range.end) :]
    return text


def with_editor(
    path: Path, use: Callable[[Editor], Awaitable[None]], *, edits: bool = True, fresh: bool = False
) -> None:
    """Use an editor and its server; with fresh, the server is started by the client, in a fresh interpreter."""

    async def run() -> None:
        editor = Editor(path)
        await editor.start(edits=edits, fresh=fresh)
        try:
            await use(editor)
        finally:
            await editor.stop()

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jobs of today.tq"
    path.write_text(TEXT, "utf-8")
    return path


def test_problems_follow_the_buffer_and_have_severities(path: Path) -> None:
    async def use(editor: Editor) -> None:
        ((line, column, severity, message),) = await editor.problems()
        assert (line, column, severity) == (7, 0, lsp.DiagnosticSeverity.Error)
        assert "a line cannot begin with '?'" in message
        editor.change("-🙂\n\\mutex= \n-x\n\\retries=many\n-end")
        found = await editor.problems()
        assert [(one[0], one[2]) for one in found] == [
            (1, lsp.DiagnosticSeverity.Hint),
            (3, lsp.DiagnosticSeverity.Warning),
            (4, lsp.DiagnosticSeverity.Hint),
        ]
        editor.client.text_document_did_close(lsp.DidCloseTextDocumentParams(editor.document))
        assert await editor.problems() == []

    with_editor(path, use, fresh=True)
    assert path.read_text("utf-8") == TEXT


@pytest.mark.parametrize("edits", [True, False])
def test_actions_are_edits_of_the_buffer(path: Path, edits: bool) -> None:
    async def use(editor: Editor) -> None:
        await editor.problems()
        found = await editor.actions(3)
        assert set(found) == {
            "Mark as done",
            "Mark as failed",
            "Comment out",
            *(f"Add the variable {name}" for name in ("mutex", "reason", "due", "pri", "tags")),
        }
        assert applied(found["Mark as done"], TEXT) == TEXT.replace("-größer", "=größer")
        assert applied(found["Mark as failed"], TEXT) == TEXT.replace("-größer", "!größer")
        reason = "\\retries=3 \n\\reason=" + " " * 40 + "\n"
        assert applied(found["Add the variable reason"], TEXT) == TEXT.replace("\\retries=3 \n", reason)
        several = await editor.actions(5, 6)
        assert set(several) == {"Mark as done", "Mark as failed", "Queue again", "Comment out"}
        assert applied(several["Queue again"], TEXT) == TEXT.replace("=done", "-done").replace("!bad", "-bad")
        mixed = await editor.actions(0, 6)
        done = TEXT.replace("-größer", "=größer").replace("!bad", "=bad")
        assert applied(mixed["Mark as done"], TEXT) == done, "comments between messages stay comments"
        line = await editor.actions(5, 6, end=0)
        assert applied(line["Queue again"], TEXT) == TEXT.replace("=done", "-done"), "one line was selected"
        edit = several["Queue again"].edit
        assert edit is not None
        assert bool(edit.document_changes) == edits

    with_editor(path, use, edits=edits)
    assert path.read_text("utf-8") == TEXT, "the server writes nothing into the file"


def test_a_problem_has_fixes(path: Path) -> None:
    async def use(editor: Editor) -> None:
        published = await asyncio.wait_for(editor.published.get(), 60)
        found = await editor.actions(7, diagnostics=list(published.diagnostics))
        assert applied(found["Make it a message"], TEXT) == TEXT.replace("?odd", "-?odd")
        assert applied(found["Continue the text"], TEXT) == TEXT.replace("?odd", " ?odd")
        assert found["Make it a comment"].kind == lsp.CodeActionKind.QuickFix

    with_editor(path, use)


def test_who_has_claimed_a_line_is_shown_and_updated(path: Path) -> None:
    path.write_text("-other\n-claimed 🙂\n more\n", "utf-8")

    async def use(editor: Editor) -> None:
        await editor.problems()
        whole = lsp.Range(lsp.Position(0, 0), lsp.Position(9, 0))

        async def hints() -> list[tuple[int, int, object]]:
            params = lsp.InlayHintParams(editor.document, whole)
            found = await editor.client.text_document_inlay_hint_async(params)
            return [(one.position.line, one.position.character, one.label) for one in found or ()]

        assert await hints() == []
        with TextQueue(path) as queue:
            first, second = taken(queue), taken(queue)
            process = second.owner.partition("/")[0]
            await asyncio.wait_for(editor.refreshed.wait(), 60)
            assert first.give_back()
            assert await hints() == [(1, 11, f"claimed by {process}")]
            assert f"claimed by {second.owner} for N s" in await editor.hover(2)
            assert "last change: put back N s ago" in await editor.hover(0)
            editor.change("-new\n-other\n-claimed 🙂\n more\n")
            assert [line for line, _, _ in await hints()] == [2], "the claim follows the message in the buffer"
            assert second.done()
        assert await hints() == []

    with_editor(path, use)


def test_hover_tells_age_attempts_reason_and_last_change(path: Path) -> None:
    os.utime(path, (time.time() - 7200,) * 2)

    async def use(editor: Editor) -> None:
        assert await editor.hover(4) == ["queued", "attempts left: 3", "in the file for at least 2 h"]
        with TextQueue(path) as q:
            added = q.append("late", ["reason=" + " " * 20])
            added.mark_as_critical_error("no such order")
            assert taken(q).failed("timeout")
        there = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.parent.iterdir()}
        assert await editor.hover(2) == [
            "queued", "attempts left: 3", "in the file for at least N s", "last change: failed N s ago"
        ]  # fmt: skip
        editor.change(saved(path))
        assert await editor.hover(12) == [
            "critical", "reason: no such order", "added N s ago", "last change: marked as critical N s ago"
        ]  # fmt: skip
        assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.parent.iterdir()} == there

    with_editor(path, use)


@pytest.mark.parametrize("control", ["=", "!"])
def test_what_is_queued_again_and_saved_is_delivered(path: Path, control: str) -> None:
    path.write_bytes(b"-one\n-two\n")
    with TextQueue(path) as q:
        for _ in range(2):
            claim = taken(q)
            assert claim.done() if control == "=" else claim.give_up()

    async def use(editor: Editor) -> None:
        text = saved(path)
        found = await editor.actions(0, text.count("\n"))
        await asyncio.to_thread(path.write_text, applied(found["Queue again"], text))
        with TextQueue(path) as q:
            assert [claim.message.value for claim in iter(q.take, None)] == ["one", "two"]
            assert q.conflicts == []

    with_editor(path, use)


def test_a_change_of_a_large_buffer_takes_less_than_50_ms(path: Path) -> None:
    path.write_text("-ship\n to Bern\n\\retries=3 \n" * 50_000)

    async def use(editor: Editor) -> None:
        assert await editor.problems() == []
        assert editor.server is not None
        before = cpu_ns(editor.server.pid)
        for number in range(20):
            editor.change(f"?{number}\n", (60_000, 0), (60_000, 0))
        assert len(await editor.problems()) == 20
        for line in range(60_000, 60_020):
            await editor.actions(line)
            await editor.hover(line + 40)
        assert (cpu_ns(editor.server.pid) - before) / 20 < 50e6

    with_editor(path, use)


_LINES = [
    "-a",
    "=b",
    " more",
    "\\retries=x",
    "\\v=1",
    "\\v=2",
    "?odd",
    "",
    "#c",
    "\ufeff",
    "-é\r",
    "-\x0cform\u2028feed",
]


@given(st.lists(st.sampled_from(_LINES)), st.data())
def test_a_buffer_after_changes_is_a_buffer_of_the_new_text(lines: list[str], data: st.DataObject) -> None:
    document = Document("\n".join(lines))
    for _ in range(3):
        first = data.draw(st.integers(0, len(document.lines) - 1))
        last = data.draw(st.integers(first, len(document.lines) - 1))
        column = data.draw(st.integers(0, len(document.lines[first])))
        end = data.draw(st.integers(column if first == last else 0, len(document.lines[last])))
        document.change((first, column), (last, end), "\n".join(data.draw(st.lists(st.sampled_from(_LINES)))))
        whole = Document("\n".join(document.lines))
        assert document.lines == whole.lines
        places = [(line, one.column, one.what) for line, one in document.problems]
        assert places == [(line, one.column, one.what) for line, one in whole.problems]
        entries = {line: one for one in whole.items(0, len(whole.lines)) for line in range(one.first, one.last + 1)}
        for line in range(len(whole.lines)):
            one, other = document.at(line), entries.get(line)
            assert (one and (one.first, one.lines)) == (other and (other.first, other.lines))


def test_completion_of_variables(path: Path) -> None:
    async def use(editor: Editor) -> None:
        editor.change("-a\n\\retries=3 \n\\\n-b\n\\color=red\n")
        params = lsp.CompletionParams(editor.document, lsp.Position(2, 1))
        found = await editor.client.text_document_completion_async(params)
        assert isinstance(found, list)
        assert {one.label for one in found} == {"mutex", "reason", "due", "pri", "tags", "color"}
        (mutex,) = [one for one in found if one.label == "mutex"]
        assert isinstance(mutex.text_edit, lsp.TextEdit)
        assert mutex.text_edit.new_text == "mutex=" + " " * 48
        editor.change("-a\u2028\n\\re\n")
        found = await editor.client.text_document_completion_async(
            lsp.CompletionParams(editor.document, lsp.Position(1, 3))
        )
        assert isinstance(found, list)
        ends = {one.text_edit.range.end.character for one in found if isinstance(one.text_edit, lsp.TextEdit)}
        assert ends == {3}, "a line ends with a newline only"
        editor.change("-a\n")
        nothing = await editor.client.text_document_completion_async(
            lsp.CompletionParams(editor.document, lsp.Position(0, 1))
        )
        assert nothing == []

    with_editor(path, use)


def test_lines_of_a_document_are_those_of_the_queue() -> None:
    document = Document("\ufeff-a\r\n b\n\n\\v=1\n=c\n")
    items = list(document.items(0, 9))
    assert [(item.first, item.last, item.entry.value) for item in items] == [(0, 1, b"a\nb"), (4, 4, b"c")]
    assert document.at(2) is document.at(99) is None
    assert list(document.items(99, 99)) == [], "an editor may ask about lines that are gone"
    assert items[0].start == 1, "the byte order mark is a character"
