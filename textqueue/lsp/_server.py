"""The language server: ``sej tq lsp``. It speaks the protocol over standard input and output.

It never writes into a file: every change is an edit of the editor's buffer, and the user saves it. So a change by the
server is a change by the user, and the queue treats it as such.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple

from lsprotocol import types as lsp
from pygls import uris
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from sej.errors import SejError
from sej.system.disk import OS, Mode, OsDisk, OsFile
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.parser import digest, essence, name_of
from textqueue.ledger.sidecar import Sidecars
from textqueue.lsp.document import TOKEN_MODIFIERS, TOKEN_TYPES, VARIABLES, Document, Item
from textqueue.queue import TextQueue
from textqueue.reading.checker import check_text
from textqueue.reading.details import details


class _Reading(OsDisk):
    """A disk for a user who may only read: otherwise a look would mark messages again that a save has reverted."""

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode != "read":
            raise PermissionError(errno.EACCES, "the server writes no file", os.fspath(path))
        return super().open(path, mode)


class Held(NamedTuple):
    """A claim: the process, and for how many seconds."""

    holder: str
    age_s: float


def holders(path: str) -> dict[str, list[Held]]:
    """Return the claims of a file by the digest of the message: one for each of several equal messages, in order."""
    found: dict[str, list[Held]] = defaultdict(list)
    try:
        with TextQueue(path, disk=_Reading()) as queue:
            for one in details(queue.messages({MessageStatus.queued}), now_ns=time.time_ns()):
                if one.holder is not None:
                    found[digest(essence(one.message.raw)).decode()].append(Held(one.holder, one.age_s))
    except (OSError, SejError):  # the buffer was never saved, or another program has the file
        return {}
    return found


def state_of(path: str) -> tuple[int, int] | None:
    """Return what changes whenever a program edits the file: size and time of its ledger; None without a ledger."""
    try:
        status = os.stat(Sidecars(path, disk=OS).path(".log"))
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


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


class _Server(LanguageServer):
    """The server, with the files that are open and the states of their ledgers."""

    def __init__(self) -> None:
        try:
            number = version("sej-journals")
        except PackageNotFoundError:
            number = "0"
        # pygls applies a partial change to lines that end at other characters as well, such as a form feed.
        super().__init__("sej-tq", number, text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
        self.ledgers: dict[str, tuple[int, int] | None] = {}
        self.looking: asyncio.Task[None] | None = None

    def open_document(self, uri: str) -> tuple[TextDocument, Document]:
        found = self.workspace.get_text_document(uri)
        return found, Document(found.source)

    def publish(self, uri: str) -> None:
        """Send the problems of a buffer."""
        found, document = self.open_document(uri)
        diagnostics = []
        for problem in check_text(document.data, found.path or uri):
            line = problem.line - 1
            text = document.lines[line]
            begin = problem.column - 1
            end = len(text.removesuffix("\r"))
            diagnostics.append(
                lsp.Diagnostic(
                    _range(found, document, line, begin, line, max(end, begin)),
                    f"{problem.what}; {problem.mend}",
                    severity=_SEVERITIES[problem.severity],
                    source="sej tq",
                )
            )
        params = lsp.PublishDiagnosticsParams(uri, diagnostics, version=found.version)
        self.text_document_publish_diagnostics(params)

    def held(self, uri: str, document: Document) -> list[tuple[Item, Held]]:
        """Return the claimed messages of a buffer."""
        path = uris.to_fs_path(uri)
        there = {} if path is None else holders(path)
        found = []
        for item in document.items:
            if item.entry.status is MessageStatus.queued and there.get(item.name):
                found.append((item, there[item.name].pop(0)))
        return found

    async def look(self) -> None:
        """Ask the editor to show the claims again whenever a program has changed them."""
        while True:
            await asyncio.sleep(_LOOK_S)
            changed = False
            for uri, state in list(self.ledgers.items()):
                path = uris.to_fs_path(uri)
                now = None if path is None else state_of(path)
                if now != state and uri in self.ledgers:
                    self.ledgers[uri], changed = now, True
            if changed:
                await self.workspace_inlay_hint_refresh_async(None)

    def shows_claims(self) -> bool:
        """Return whether the editor can be asked to show the claims again."""
        workspace = self.client_capabilities.workspace
        return bool(workspace and workspace.inlay_hint and workspace.inlay_hint.refresh_support)


def make_server() -> LanguageServer:
    """Return a server with all features; ``start_io`` runs it."""
    server = _Server()
    _add_documents(server)
    _add_views(server)
    _add_edits(server)
    return server


def _add_documents(server: _Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        uri = params.text_document.uri
        path = uris.to_fs_path(uri)
        server.ledgers[uri] = None if path is None else state_of(path)
        server.publish(uri)
        if server.looking is None and server.shows_claims():
            server.looking = asyncio.get_running_loop().create_task(server.look())

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        server.publish(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        server.ledgers.pop(params.text_document.uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))


def _add_views(server: _Server) -> None:
    @server.feature(
        lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, lsp.SemanticTokensLegend(list(TOKEN_TYPES), list(TOKEN_MODIFIERS))
    )
    def tokens(params: lsp.SemanticTokensParams) -> lsp.SemanticTokens:
        found, document = server.open_document(params.text_document.uri)
        data: list[int] = []
        line = column = 0
        for token in document.tokens():
            text = document.lines[token.line]
            start = _units(found, text[: token.column])
            length = _units(found, text[token.column : token.column + token.length])
            begin = start - column if token.line == line else start
            data += [token.line - line, begin, length, TOKEN_TYPES.index(token.kind), token.modifiers]
            line, column = token.line, start
        return lsp.SemanticTokens(data)

    @server.feature(lsp.TEXT_DOCUMENT_FOLDING_RANGE)
    def folds(params: lsp.FoldingRangeParams) -> list[lsp.FoldingRange]:
        _, document = server.open_document(params.text_document.uri)
        comment = lsp.FoldingRangeKind.Comment
        return [
            lsp.FoldingRange(
                item.first, item.last, kind=comment if item.entry.status is MessageStatus.comment else None
            )
            for item in document.folds()
        ]

    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def hints(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        found, document = server.open_document(params.text_document.uri)
        shown = range(params.range.start.line, params.range.end.line + 1)
        return [
            lsp.InlayHint(
                lsp.Position(item.first, _units(found, item.lines[0])),
                f"claimed by {_process(held)}",
                padding_left=True,
                tooltip=_claim_text(held),
            )
            for item, held in server.held(params.text_document.uri, document)
            if item.first in shown
        ]

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        found, document = server.open_document(params.text_document.uri)
        item = document.at(params.position.line)
        if item is None:
            return None
        text = f"**{item.entry.status.name}**"
        for other, held in server.held(params.text_document.uri, document):
            if other is item:
                text += f"\n\n{_claim_text(held)}"
        where = _range(found, document, item.first, 0, item.last, len(item.lines[-1]))
        return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text), where)


def _add_edits(server: _Server) -> None:
    @server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["\\"]))
    def complete(params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
        found, document = server.open_document(params.text_document.uri)
        place = found.position_codec.position_from_client_units(document.lines, params.position)
        where = _range(found, document, place.line, 1, place.line, place.character)
        return [
            lsp.CompletionItem(
                name, kind=lsp.CompletionItemKind.Variable, detail=what, text_edit=lsp.TextEdit(where, line)
            )
            for name, (line, what) in document.completions(place.line, place.character).items()
        ]

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.RefactorRewrite]),
    )
    def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        found, document = server.open_document(params.text_document.uri)
        first, last = params.range.start.line, params.range.end.line
        if last > first and not params.range.end.character:  # a selection of whole lines ends before the next line
            last -= 1
        items = [item for item in document.items if item.first <= last and item.last >= first]
        messages = [item for item in items if item.entry.status is not MessageStatus.comment]
        items = messages or items  # comments between selected messages stay comments
        made = []
        for status, title in _ACTIONS.items():
            edits = [
                lsp.TextEdit(_range(found, document, item.first, _start(item), item.first, _start(item) + 1), control)
                for item in items
                if item.entry.status is not status and (control := CONTROL_OF[status].decode())
            ]
            if edits:
                made.append(_action(server, found, title, edits))
        if len(items) == 1:
            made += _variable_actions(server, found, document, items[0])
        return [*_fixes(server, found, params.context.diagnostics), *made]


def _variable_actions(server: _Server, found: TextDocument, document: Document, item: Item) -> Iterable[lsp.CodeAction]:
    names = {name_of(data) for data in item.entry.variables}
    end = _range(found, document, item.last, len(item.lines[-1]), item.last, len(item.lines[-1]))
    for name, (line, _) in VARIABLES.items():
        if name not in names and item.entry.status is not MessageStatus.comment:
            yield _action(server, found, f"Add the variable {name}", [lsp.TextEdit(end, f"\n\\{line}")])


def _fixes(server: _Server, found: TextDocument, diagnostics: Iterable[lsp.Diagnostic]) -> Iterable[lsp.CodeAction]:
    for problem in diagnostics:
        start = lsp.Range(problem.range.start, problem.range.start)
        if problem.source != "sej tq" or problem.range.start.character:
            continue
        if problem.message.startswith("a line cannot begin with"):
            for title, control in (("Make it a message", "-"), ("Make it a comment", "#"), ("Continue the text", " ")):
                yield _action(server, found, title, [lsp.TextEdit(start, control)], problem)


def _action(
    server: _Server,
    found: TextDocument,
    title: str,
    edits: list[lsp.TextEdit],
    problem: lsp.Diagnostic | None = None,
) -> lsp.CodeAction:
    workspace = server.client_capabilities.workspace
    if workspace and workspace.workspace_edit and workspace.workspace_edit.document_changes:
        name = lsp.OptionalVersionedTextDocumentIdentifier(found.uri, version=found.version)
        edit = lsp.WorkspaceEdit(document_changes=[lsp.TextDocumentEdit(name, list(edits))])
    else:
        edit = lsp.WorkspaceEdit(changes={found.uri: edits})
    kind = lsp.CodeActionKind.RefactorRewrite if problem is None else lsp.CodeActionKind.QuickFix
    return lsp.CodeAction(title, kind=kind, edit=edit, diagnostics=None if problem is None else [problem])


def _start(item: Item) -> int:
    return 1 if item.first == 0 and item.entry.position else 0  # a byte order mark is a character


def _range(found: TextDocument, document: Document, line: int, column: int, last: int, end: int) -> lsp.Range:
    """Return a range in the units of the editor."""
    return lsp.Range(
        lsp.Position(line, _units(found, document.lines[line][:column])),
        lsp.Position(last, _units(found, document.lines[last][:end])),
    )


def _units(found: TextDocument, text: str) -> int:
    return int(found.position_codec.client_num_units(text))


def _process(held: Held) -> str:
    return held.holder.partition("/")[0]


def _claim_text(held: Held) -> str:
    minutes, seconds = divmod(int(held.age_s), 60)
    return f"claimed by {held.holder} for {f'{minutes} min ' if minutes else ''}{seconds} s"
