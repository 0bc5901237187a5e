"""The language server: ``sej tq lsp``. It speaks the protocol over standard input and output.

It never writes into a file: every change is an edit of the editor's buffer, and the user saves it. So a change by the
server is a change by the user, and the queue treats it as such.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Final
from urllib.parse import unquote

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.workspace import PositionCodec, TextDocument

from sej.cli.shared.text import human_duration
from sej.system.clock import SYSTEM
from sej.system.disk import OS, Mode, OsDisk, OsFile
from textqueue import log
from textqueue.format.mutex import Leases
from textqueue.format.parser import CONTROL_OF, DUE, REASON, RETRIES, STATUS_OF, MessageStatus, decode, name_of
from textqueue.log import Ledger, Record
from textqueue.lsp import VARIABLES, Document, Item
from textqueue.sidecar import Guard


class _Reading(OsDisk):
    """A disk for a user who may only read: the server writes no file, so it opens the ledger of a queue for reading."""

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode != "read":
            raise PermissionError(errno.EACCES, "the server writes no file", os.fspath(path))
        return super().open(path, mode)


_LEASES: Final = Leases(SYSTEM)
_WHAT: Final = {
    **{kind: f"marked as {STATUS_OF[kind].name}" for kind in log.MARKS},
    **dict.fromkeys(log.CLAIMS, "claimed"),
    log.APPENDED: "added",
    log.ARCHIVED: "moved to another file",
    log.ENDED: "its claim ended",
    log.GIVEN_BACK: "put back",
    log.SET: "a variable was set",
}
"""The changes of a message in the ledger."""
_SHOWN: Final = {RETRIES: "attempts left", REASON: "reason", DUE: "not before"}


class _Buffer(TextDocument):
    """An open file. pygls would copy its whole text for each change, and end lines at a form feed as well."""

    def __init__(self, opened: lsp.TextDocumentItem, codec: PositionCodec) -> None:
        super().__init__(opened.uri, version=opened.version, position_codec=codec)
        self.document = Document(opened.text)
        self.ledger = Ledger(Guard(self.path or "unnamed", disk=OS).log, disk=_Reading())
        self.publishing: asyncio.TimerHandle | None = None

    def apply_change(self, change: lsp.TextDocumentContentChangeEvent) -> None:
        if isinstance(change, lsp.TextDocumentContentChangePartial):
            self.document.change(self.place(change.range.start), self.place(change.range.end), change.text)
        else:
            self.document = Document(change.text)

    def place(self, position: lsp.Position) -> tuple[int, int]:
        """Return the line and the column of a position of the editor."""
        lines = self.document.lines
        if position.line >= len(lines):
            return len(lines) - 1, len(lines[-1])
        where = lsp.Position(0, position.character)
        text = f"{lines[position.line]}\n"  # pygls expects the line end
        return position.line, self.position_codec.position_from_client_units([text], where).character

    def units(self, text: str) -> int:
        """Return the length of a text in the units of the editor."""
        return len(text) if text.isascii() else int(self.position_codec.client_num_units(text))

    def range(self, line: int, column: int, last: int, end: int) -> lsp.Range:
        """Return a range in the units of the editor."""
        lines = self.document.lines
        return lsp.Range(
            lsp.Position(line, self.units(lines[line][:column])), lsp.Position(last, self.units(lines[last][:end]))
        )

    def state(self) -> tuple[int, int]:
        """Read what programs have added to the ledger, and return what changes with it."""
        with suppress(OSError):  # this user may not read it, or a program replaces it
            self.ledger.refresh(look=True)
        return self.ledger.reading, self.ledger.lines

    def held(self, first: int, last: int) -> Iterator[tuple[Item, Record]]:
        """Yield the claimed messages that have a line between two lines, with their claims."""
        self.state()
        claims: dict[bytes, list[Record]] = {}
        for _, record in sorted(self.ledger.claims.items()):
            claims.setdefault(record.digest, []).append(record)
        for item in self.document.items(first, last) if claims else ():
            there = claims.get(item.name, ()) if item.entry.status is MessageStatus.queued else ()
            there = [one for one in there if _LEASES.holder(one.detail)]
            equal = self.document.equal_above(item) if there else 0  # of equal messages, the first ones have the claims
            yield from [(item, one) for one in there[equal : equal + 1]]

    def about(self, item: Item) -> Iterator[str]:
        """Yield what a person wants to know about a message."""
        yield item.entry.status.name
        yield from [_claim_text(held) for _, held in self.held(item.first, item.last)]
        for data in item.entry.variables if item.entry.status is not MessageStatus.comment else ():
            what, value = _SHOWN.get(name_of(data) or ""), data.partition(b"=")[2]
            if what and value.strip():
                yield f"{what}: {decode(value.strip())}"
        changes = [one for one in self.ledger.history(item.name) if one.digest == item.name and one.kind in _WHAT]
        try:
            since_ns = changes[0].token[2] if changes else os.stat(self.path).st_mtime_ns
        except OSError:  # the buffer was never saved
            return
        was_added = changes and changes[0].kind == log.APPENDED
        yield f"added {_ago(since_ns)} ago" if was_added else f"in the file for at least {_ago(since_ns)}"
        if changes:
            *_, last = changes
            what = "failed" if last.detail.startswith(log.FAILED) else _WHAT[last.kind]
            yield f"last change: {what} {_ago(last.token[2])} ago"


def _ago(since_ns: int) -> str:
    return human_duration(max(time.time_ns() - since_ns, 0) / 1e9)


_SEVERITIES: Final = {
    "error": lsp.DiagnosticSeverity.Error,
    "warning": lsp.DiagnosticSeverity.Warning,
    "hint": lsp.DiagnosticSeverity.Hint,
}
_ACTIONS: Final = {
    MessageStatus.cleared: "Mark as done",
    MessageStatus.critical: "Mark as failed",
    MessageStatus.queued: "Queue again",
    MessageStatus.comment: "Comment out",
}
_LOOK_S: Final = 1.0
"""How often the claims of the open files are compared with those that were shown."""
_QUIET_S: Final = 0.1
"""The problems are sent when the buffer was not changed for this time."""
_PROBLEMS_MAX: Final = 250
"""The number of problems that are sent: hints are left out first."""


class _Server(LanguageServer):
    """The server, with the files that are open."""

    def __init__(self) -> None:
        try:
            number = version("sej-journals")
        except PackageNotFoundError:
            number = "0"
        super().__init__("sej-tq", number)
        self.buffers: dict[str, _Buffer] = {}
        self.looking: asyncio.Task[None] | None = None

    def buffer(self, uri: str) -> _Buffer:
        """Return an open file. One that was closed meanwhile is empty."""
        return self.buffers.get(uri) or _Buffer(lsp.TextDocumentItem(uri, "", 0, ""), self.workspace.position_codec)

    def publish(self, buffer: _Buffer) -> None:
        """Send the problems of a buffer."""
        problems = sorted(buffer.document.problems, key=lambda one: one[1].severity == "hint")[:_PROBLEMS_MAX]
        diagnostics = []
        for line, problem in sorted(problems):
            begin = problem.column - 1
            end = len(buffer.document.lines[line].removesuffix("\r"))
            diagnostics.append(
                lsp.Diagnostic(
                    buffer.range(line, begin, line, max(end, begin)),
                    f"{problem.what}; {problem.mend}",
                    severity=_SEVERITIES[problem.severity],
                    source="sej tq",
                )
            )
        params = lsp.PublishDiagnosticsParams(buffer.uri, diagnostics, version=buffer.version)
        self.text_document_publish_diagnostics(params)

    async def look(self) -> None:
        """Ask the editor to show the claims again whenever a program has changed them."""
        before: dict[str, tuple[int, int]] = {}
        while True:
            now = {uri: buffer.state() for uri, buffer in self.buffers.items()}
            if now != before:
                before = now
                await self.workspace_inlay_hint_refresh_async(None)
            await asyncio.sleep(_LOOK_S)


def make_server() -> LanguageServer:
    """Return a server with all features; ``start_io`` runs it."""
    server = _Server()
    _add_views(server)
    _add_edits(server)
    return server


def _add_views(server: _Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        uri = params.text_document.uri
        buffer = _Buffer(params.text_document, server.workspace.position_codec)
        server.buffers[uri] = server.workspace.text_documents[unquote(uri)] = buffer
        server.publish(buffer)
        workspace = server.client_capabilities.workspace
        shows = workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support
        if server.looking is None and shows:
            server.looking = asyncio.get_running_loop().create_task(server.look())

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        buffer = server.buffer(params.text_document.uri)
        if buffer.publishing is not None:
            buffer.publishing.cancel()
        buffer.publishing = asyncio.get_running_loop().call_later(_QUIET_S, server.publish, buffer)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        buffer = server.buffer(params.text_document.uri)
        server.buffers.pop(buffer.uri, None)
        buffer.ledger.close()
        if buffer.publishing is not None:
            buffer.publishing.cancel()
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))

    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def hints(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        buffer = server.buffer(params.text_document.uri)
        return [
            lsp.InlayHint(
                lsp.Position(item.first, buffer.units(item.lines[0])),
                f"claimed by {decode(held.holder).partition('/')[0]}",
                padding_left=True,
                tooltip=_claim_text(held),
            )
            for item, held in buffer.held(params.range.start.line, params.range.end.line)
        ]

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        buffer = server.buffer(params.text_document.uri)
        item = buffer.document.at(params.position.line)
        if item is None:
            return None
        where = buffer.range(item.first, 0, item.last, len(item.lines[-1]))
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.PlainText, "\n".join(buffer.about(item))), where)


def _add_edits(server: _Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["\\"]))
    def complete(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        buffer = server.buffer(params.text_document.uri)
        line, column = buffer.place(params.position)
        where = buffer.range(line, 1, line, column)
        return [
            lsp.CompletionItem(
                name, kind=lsp.CompletionItemKind.Variable, detail=what, text_edit=lsp.TextEdit(where, text)
            )
            for name, (text, what) in buffer.document.completions(line, column).items()
        ]

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.RefactorRewrite]),
    )
    def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        buffer = server.buffer(params.text_document.uri)
        first, last = params.range.start.line, params.range.end.line
        if last > first and not params.range.end.character:  # a selection of whole lines ends before the next line
            last -= 1
        items = list(buffer.document.items(first, last))
        messages = [item for item in items if item.entry.status is not MessageStatus.comment]
        items = messages or items  # comments between selected messages stay comments
        made = []
        for status, title in _ACTIONS.items():
            edits = [
                lsp.TextEdit(buffer.range(item.first, item.start, item.first, item.start + 1), control)
                for item in items
                if item.entry.status is not status and (control := CONTROL_OF[status].decode())
            ]
            if edits:
                made.append(_action(server, buffer, title, edits))
        if len(items) == 1:
            made += _variable_actions(server, buffer, items[0])
        return [*_fixes(server, buffer, params.context.diagnostics), *made]


def _variable_actions(server: _Server, buffer: _Buffer, item: Item) -> Iterable[lsp.CodeAction]:
    names = {name_of(data) for data in item.entry.variables}
    end = buffer.range(item.last, len(item.lines[-1]), item.last, len(item.lines[-1]))
    for name, (line, _) in VARIABLES.items():
        if name not in names and item.entry.status is not MessageStatus.comment:
            yield _action(server, buffer, f"Add the variable {name}", [lsp.TextEdit(end, f"\n\\{line}")])


def _fixes(server: _Server, buffer: _Buffer, diagnostics: Iterable[lsp.Diagnostic]) -> Iterable[lsp.CodeAction]:
    for problem in diagnostics:
        start = lsp.Range(problem.range.start, problem.range.start)
        if problem.source != "sej tq" or problem.range.start.character:
            continue
        if problem.message.startswith("a line cannot begin with"):
            for title, control in (("Make it a message", "-"), ("Make it a comment", "#"), ("Continue the text", " ")):
                yield _action(server, buffer, title, [lsp.TextEdit(start, control)], problem)


def _action(
    server: _Server,
    buffer: _Buffer,
    title: str,
    edits: list[lsp.TextEdit],
    problem: lsp.Diagnostic | None = None,
) -> lsp.CodeAction:
    workspace = server.client_capabilities.workspace
    if workspace and workspace.workspace_edit and workspace.workspace_edit.document_changes:
        name = lsp.OptionalVersionedTextDocumentIdentifier(buffer.uri, version=buffer.version)
        edit = lsp.WorkspaceEdit(document_changes=[lsp.TextDocumentEdit(name, list(edits))])
    else:
        edit = lsp.WorkspaceEdit(changes={buffer.uri: edits})
    kind = lsp.CodeActionKind.RefactorRewrite if problem is None else lsp.CodeActionKind.QuickFix
    return lsp.CodeAction(title, kind=kind, edit=edit, diagnostics=None if problem is None else [problem])


def _claim_text(claim: Record) -> str:
    return f"claimed by {decode(claim.holder)} for {_ago(claim.token[2])}"
