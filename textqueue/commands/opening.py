"""Opening a queue for a command, and printing its conflicts.

**Names.** The name of a message is its position, which is the byte at which it begins, and a hash of its text and
variables: ``7:0c3f90a1``. A mark changes neither. If a user inserts a line above, the position alone would name
another message. In a queue of several files, the name begins with the file: ``ann.tq:7:0c3f90a1``. People may write a
short form, if only one message fits it: a command never guesses.
"""

from __future__ import annotations

import json as jsonlib
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

import click

from sej.cli.shared.command import PATH, Exit
from sej.system.disk import OS, absolute_path
from sej.system.locks import process_host, process_start
from textqueue.checker import Detail, details
from textqueue.drain import OnceWriter
from textqueue.editing.message import Message
from textqueue.editing.tq_file import TqFile
from textqueue.errors import Conflict, InvalidTextError
from textqueue.files import SUFFIX, files_of
from textqueue.format.parser import BOM, CONTROL_OF, CONTROLS, MessageStatus, digest
from textqueue.queue import TextQueue
from textqueue.sidecar import real_path, sidecar_path

_LINE: Final = ".*.tq.*"
_TIMEOUT_S: Final = 5.0


@contextmanager
def advising(paths: Iterable[str]) -> Iterator[None]:
    """Print the advice if the ledger of a queue is created within this context, and git does not ignore it."""
    new = [ledger for path in paths if not os.path.exists(ledger := sidecar_path(real_path(path), ".log"))]
    try:
        yield
    finally:
        for root in dict.fromkeys(_work_tree(ledger) for ledger in new if os.path.exists(ledger)):
            if root is not None:
                where = root / ".gitignore"
                click.echo(f"sej: add the line {_LINE} to {where}: it names the hidden files of queues", err=True)


def _work_tree(ledger: str) -> Path | None:
    """Return the git work tree of a file that git does not ignore; None if it is in none."""
    folder = Path(ledger).absolute().parent
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)
    command = ["git", "-C", str(folder), "check-ignore", "-q", "--no-index", os.path.basename(ledger)]
    with suppress(OSError, subprocess.TimeoutExpired):
        if root and subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode == 1:
            return root
    return None


_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f\\]")
_ESCAPED: Final = {b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\\": b"\\\\"}
"""Control characters are printed as ``sej scan`` prints them."""


def shown(text: bytes) -> bytes:
    """Return a text with its control characters escaped."""
    return _CONTROL.sub(lambda found: _ESCAPED.get(found[0]) or b"\\x%02x" % found[0][0], text)


def readable(text: bytes) -> str:
    """Return a text as it is shown on a screen."""
    return shown(text).decode(errors="backslashreplace")


def print_json(fields: Mapping[str, Any]) -> None:
    """Print one object, in UTF-8 in every locale. Bytes that are not UTF-8 remain as they are."""
    sys.stdout.buffer.write(jsonlib.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n")


def print_line(*columns: str | bytes) -> None:
    """Print one line of columns, separated by tabs."""
    found = [one.encode("utf-8", "surrogateescape") if isinstance(one, str) else one for one in columns]
    sys.stdout.buffer.write(b"\t".join(found) + b"\n")


def refuse(path: Path, why: str, code: Exit = Exit.MISSING) -> NoReturn:
    """Print why a command does nothing, and end it."""
    click.echo(f"sej: {path}: {why}", err=True)
    raise SystemExit(code)


QUEUE: Final = click.argument("path", metavar="PATH", type=PATH)
_BEGINS: Final = frozenset(CONTROL_OF.values())
"""The first bytes of the lines that begin an entry."""
_MESSAGES: Final = frozenset(CONTROL_OF[status] for status in MessageStatus if status is not MessageStatus.comment)
_KNOWN: Final = frozenset(bytes([control.byte]) for control in CONTROLS)
_LOOK_BYTES: Final = 1 << 16
_EMPTY: Final = f"no file in this directory has a name that ends in {SUFFIX}; `sej tq add` creates one"


class JournalsLike(Protocol):
    """Access to journals, which the command ``sej`` provides, so that this package does not import them."""

    def writer(self, path: str | os.PathLike[str]) -> AbstractContextManager[OnceWriter]:
        """Open a writer of a journal."""


def require(path: Path, *, some: bool = True) -> None:
    """Check that a queue exists: its file, one in its directory, which may be empty without some, or of its pattern."""
    files = files_of(os.fspath(path), None, OS)
    if not path.exists():
        if files.single is not None or not files.found(OS):
            raise FileNotFoundError(f"{path}: the file does not exist; `sej tq add` creates it")
    elif some and not files.found(OS):
        raise FileNotFoundError(f"{path}: {_EMPTY}")


def opened(path: Path, *, some: bool = False) -> AbstractContextManager[TextQueue]:
    """Open a queue that exists, and print its conflicts at the end. some: a directory must have a file."""
    require(path, some=some)
    return reporting(TextQueue(path))


@contextmanager
def reporting(queue: TextQueue) -> Iterator[TextQueue]:
    """Close the queue at the end, and print its conflicts, also if the command fails."""
    try:
        with advising(queue.input_files), queue:
            yield queue
    finally:
        report(queue.conflicts)


@contextmanager
def opened_files(path: Path) -> Iterator[list[TqFile]]:
    """Open the files of a queue for edits that concern one file each. Print the conflicts at the end."""
    with opened(path, some=True) as queue:
        yield queue._inputs.sources


def report(conflicts: list[Conflict]) -> None:
    """Print the conflicts that were found since the last call."""
    while conflicts:
        path, position, text, kind, action = conflicts.pop(0)
        value = readable(text.encode("utf-8", "surrogateescape"))
        click.echo(f"sej: {path}: position {position}: {value}: {kind}: {action}", err=True)


def refuse_foreign(path: Path) -> None:
    """Check that an append does not change a file that is not a queue, like a program or a page in Markdown.

    It has another suffix, and more lines that a queue skips than messages. A queue with a wrong line is not refused.
    """
    if path.suffix == SUFFIX or not path.is_file():
        return
    with open(path, "rb") as file:
        data = file.read(_LOOK_BYTES)
    lines = [line for line in data.removeprefix(BOM).splitlines() if line.strip()]
    skipped = [line for line in lines if line[:1] not in _KNOWN]
    if len(skipped) > sum(line[:1] in _MESSAGES for line in lines):
        known = " ".join(repr(chr(control.byte)) for control in CONTROLS)
        raise InvalidTextError(
            f"this is not a text queue: lines like {skipped[0][:40].decode(errors='backslashreplace')!r} do not begin"
            f" with one of {known}; choose a new file or a queue, or let the name end in {SUFFIX}",
            path=path,
        )


def note_if_foreign(queue: TextQueue, path: Path) -> None:
    """Report a directory without files, and each file that has lines and no entry: it is probably not a queue."""
    if not queue.input_files:
        click.echo(f"sej: {path}: {_EMPTY}", err=True)
    for file in queue.input_files:
        skipped = _skipped(file)
        if skipped:
            lines = "1 line is" if skipped == 1 else f"{skipped} lines are"
            click.echo(f"sej: {file}: no line is a message ({lines} skipped); run `sej tq check {file}`", err=True)


def _skipped(path: str) -> int:
    """Return the number of lines that are not blank; 0 if one of them begins an entry."""
    skipped = 0
    with open(path, "rb") as file:
        for line in file:
            if line.removeprefix(BOM)[:1] in _BEGINS:
                return 0
            skipped += bool(line.strip())
    return skipped


def shell() -> str:
    """Return the owner of a claim of the calling shell."""
    parent = os.getppid()
    return f"{parent}@{process_host()}/{process_start(parent)}"


NAMES: Final = click.argument("names", metavar="[MESSAGE]...", nargs=-1)
_NAME: Final = re.compile(r"(?:.*:)?\d+:[0-9a-f]{8}")
_HASH_LEAST: Final = 4
_ALIKE_MAX: Final = 10


def hash_of(message: Message) -> str:
    """Return the second part of the name of a message."""
    return digest(message.raw)[:8].decode()


def name_of(message: Message, path: Path) -> str:
    """Return the name of a message of a queue: with its file, unless the queue is this one file."""
    file = "" if message.path == absolute_path(path) else f"{os.path.basename(message.path)}:"
    return f"{file}{message.position}:{hash_of(message)}"


def are_names(words: Iterable[str]) -> bool:
    """Return whether words are names of messages, and none has a short form."""
    return all(_NAME.fullmatch(word) for word in words)


def named(queue: TextQueue, path: Path, words: Iterable[str], among: Collection[MessageStatus]) -> list[Message]:
    """Return the messages that words name. If a word does not name exactly one, the command ends.

    A word is a name, or a short form: one of the lines of a message of some statuses, or the begin of its hash or text.
    Each may follow the name of its file and a colon.
    """
    made: dict[Message, None] = {}
    messages = details(queue.messages(list(MessageStatus)), now_ns=0)
    there = [(one, digest(one.message.raw).decode()) for one in messages]
    for word in words:
        if not word.strip():
            raise click.UsageError("expected a message: its name, a line, or the beginning of its hash or text; got ''")
        fits = [one for one, name in there if _fits(one, name, word)]
        found = [one for one in fits if one.message.status in among or are_names([word])]
        if len(found) != 1:
            alike = found or fits or [one for one, name in there if word.endswith(f":{name[:8]}")]
            known = "".join(
                f"\n  {name_of(message, path)}  line {line}, {message.status.name}: {message.value[:60]!r}"
                for message, line, *_ in alike[:_ALIKE_MAX]
            )
            hint = f"choose by name:{known}" if known else "`sej tq list` prints the messages"
            hint += f"\n  and {len(alike) - _ALIKE_MAX} others" if len(alike) > _ALIKE_MAX else ""
            what = "" if are_names([word]) else " or ".join(sorted(status.name for status in among)) + " "
            refuse(path, f"{len(found) or 'no'} {what}messages match {word!r}, so none was changed; {hint}")
        made[found[0].message] = None
    return list(made)


def _fits(one: Detail, name: str, word: str) -> bool:
    message = one.message
    word = word.removeprefix(f"{os.path.basename(message.path)}:")
    if are_names([word]):
        return word == f"{message.position}:{name[:8]}"
    is_line = word.isdecimal() and one.line <= int(word) <= one.line + message.raw[:-1].count(b"\n")
    is_hash = len(word) >= _HASH_LEAST and name.startswith(word)
    return is_line or is_hash or message.value.lstrip().startswith(word)
