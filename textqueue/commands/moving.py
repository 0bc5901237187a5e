"""``sej tq archive | split | drain``: move messages elsewhere; ``sej tq edit``: opens an editor.

The text is checked before it is saved, as ``visudo`` does. The editor gets a copy. So workers can change the file
meanwhile, and no editor saves an old buffer over their marks.

**The edit of** ``sej tq edit`` is merged with what programs wrote meanwhile.

Programs change entries in place, and append. So the entries of the file are those that the person began with, and new
ones at the end. An entry that the person has left as it was gets the version of the programs; a text of the person
wins, and the entry is reported. Of equal messages, the person has deleted one that no program has changed. If another
person has saved the file, or messages were moved out of it, nothing is merged.

The merged text is written into a temporary file, which is renamed. It has the number of the last change, so the person
has seen all changes, and the next session finds the claims again, as after a save by an editor
(``textqueue.editing.reconcile``). A crash before the rename changes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import click

from sej.cli.shared.command import PATH, Exit, IntRange
from sej.system.disk import OS
from sej.system.locks import end_file_lease
from textqueue.checker import check
from textqueue.commands.opening import (
    QUEUE,
    JournalsLike,
    note_if_foreign,
    opened,
    opened_files,
    print_line,
    readable,
    refuse,
    refuse_foreign,
    require,
)
from textqueue.editing.archive_and_split import Part, require_outside_journals
from textqueue.editing.archive_and_split import split as split_file
from textqueue.editing.message import Message
from textqueue.editing.queue_file import ALL, QueueFile
from textqueue.editing.tq_file import TqFile
from textqueue.files import SUFFIX
from textqueue.format.parser import BOM, STATUS_OF, MessageStatus, chunks, trimmed, value_of
from textqueue.format.windows import generations_in, is_generation, line_for, token_of
from textqueue.sidecar import sidecar_path, temporary_file

_UNSAFE: Final = re.compile(r"[^\w.+@-]|^\.")


@click.command
@QUEUE
@click.argument("target", type=PATH)
@click.option("--critical", is_flag=True, help="Move critical errors as well.")
def archive(path: Path, target: Path, critical: bool) -> None:
    """Move cleared messages to the end of another file, and print their number.

    Example: sej tq archive jobs.tq jobs.done
    """
    refuse_foreign(target)
    with opened(path) as queue:
        statuses = {MessageStatus.cleared} | ({MessageStatus.critical} if critical else set())
        click.echo(queue.archive(target, statuses))


@click.command
@QUEUE
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--status", "by_status", is_flag=True, help="One file for each status: jobs-queued.tq and others.")
@click.option("--every", type=IntRange(1), help="One file for each N messages: jobs-0001.tq and others.")
@click.option("--variable", help="One file for each value of this variable, such as writer: jobs-ann.tq and others.")
def split(path: Path, directory: Path, by_status: bool, every: int | None, variable: str | None) -> None:
    """Move the messages into several new files in a directory, which is created. Print the files and their counts.

    A comment is moved with the messages right below it, if all of them are moved to the same file. A message remains if
    a process has claimed it, or if it does not have the variable. If the command is interrupted, the next split of the
    same file completes it, or starts again: no message is lost, and none is in two files.

    Example: sej tq split jobs.tq jobs --variable writer
    """
    if by_status + (every is not None) + (variable is not None) != 1:
        raise click.UsageError("give exactly one of --status, --every or --variable")
    require(path)
    require_outside_journals(OS, os.fspath(directory))
    directory.mkdir(parents=True, exist_ok=True)
    with opened_files(path) as sources:
        for source in sources:
            choose = _naming(source, directory, by_status=by_status, every=every, variable=variable)
            made = split_file(source, choose)
            for target, count in sorted(made.items()):
                print_line(target, str(count))


def _naming(
    source: TqFile, directory: Path, *, by_status: bool, every: int | None, variable: str | None
) -> Callable[[Part], str | None]:
    """Return a function that returns the path of the new file for a message."""
    stem = directory / os.path.basename(source.path).removesuffix(SUFFIX)
    number, last = 0, -1

    def name(part: Part) -> str | None:
        nonlocal number, last
        if part.position <= last:  # another program changed the file, so the split begins again
            number = 0
        last = part.position
        if by_status:
            return f"{stem}-{STATUS_OF[part.raw[0]].name}{SUFFIX}"
        if every is not None:
            number += 1
            return f"{stem}-{(number - 1) // every + 1:04}{SUFFIX}"
        value = Message(source, part.raw, part.position, -1).get(str(variable), "")
        return f"{stem}-{_UNSAFE.sub('_', value)}{SUFFIX}" if value else None

    return name


@click.command
@QUEUE
@click.argument("journal", metavar="DIR", type=PATH)
@click.pass_obj
def drain(journals: JournalsLike, path: Path, journal: Path) -> None:
    """Move every queued message into a SEJ journal, each exactly once, even after a crash. Print their number.

    Example: sej tq drain jobs.tq jobs
    """
    with opened(path) as queue, journals.writer(journal) as writer:
        moved = queue.drain_to(writer)
        if not moved:
            note_if_foreign(queue, path)
        click.echo(moved)


_QUESTION: Final = "(e)dit again, (x) leave without saving changes, or (s)ave anyway"


@click.command
@QUEUE
def edit(path: Path) -> None:
    """Edit a queue in $VISUAL or $EDITOR, and check the text before it is saved.

    The editor gets a copy, so workers may continue. What they and other programs change meanwhile is kept: their marks
    and the messages that they append. If both sides change the same message, your version is saved, and the command
    reports it. If you delete a line or change a status, it counts. Of equal messages, you delete one that is free.

    If another person saves the file meanwhile, or the command is killed, your text is still in its copy, in a directory
    sej-tq-* below $TMPDIR or /tmp.

    Exit code 1: the editor failed, or the changes were not saved.

    Example: sej tq edit jobs.tq
    """
    folder = tempfile.mkdtemp(prefix="sej-tq-")
    with opened_files(path) as sources, ExitStack() as finally_:
        finally_.callback(shutil.rmtree, folder)
        originals = [Path(source.path).read_bytes() for source in sources]
        copies = [Path(folder) / os.path.basename(source.path) for source in sources]
        for copy, data in zip(copies, originals, strict=True):
            copy.write_bytes(data)
        while True:
            _run_editor(path, copies)
            if not all(copy.exists() for copy in copies):
                refuse(path, "the editor removed its copy of the file, so nothing was changed", Exit.WRONG)
            texts = [copy.read_bytes() for copy in copies]
            if texts == originals or not _problems(path, copies, originals):
                break
            answer = click.prompt(_QUESTION, type=click.Choice(["e", "x", "s"]), show_choices=False, err=True)
            if answer == "x":
                refuse(path, "the changes were not saved", Exit.WRONG)
            if answer == "s":
                break
        for source, old, new in zip(sources, originals, texts, strict=True):
            if new == old:
                continue
            overridden = save(source, old, new)
            if overridden is None:
                finally_.pop_all()
                what = "another person changed or moved lines, so your version was not saved; compare it with the file:"
                refuse(path, f"{what} it is in {folder}", Exit.WRONG)
            for raw in overridden:
                what = "a program changed this message; your version was saved"
                click.echo(f"sej: {source.path}: {readable(value_of(raw))}: {what}", err=True)


def _run_editor(path: Path, files: list[Path]) -> None:
    names = [os.environ.get(variable, "").strip() for variable in ("VISUAL", "EDITOR")]
    name = next(filter(None, names), "vi")
    try:
        command = shlex.split(name)
        code = subprocess.run([*command, *map(str, files)], check=False).returncode
    except (OSError, ValueError) as error:  # ValueError: a quotation mark without its pair
        reason = (isinstance(error, OSError) and error.strerror) or error
        refuse(path, f"the editor {name!r} cannot be started ({reason}); set VISUAL or EDITOR", Exit.WRONG)
    if code:
        refuse(path, f"the editor ended with exit code {code}, so nothing was changed", Exit.WRONG)


def _problems(path: Path, copies: list[Path], originals: list[bytes]) -> bool:
    """Print the problems of the files that were changed, and return whether there are any."""
    found = False
    for copy, old in zip(copies, originals, strict=True):
        for problem in check(copy) if copy.read_bytes() != old else ():
            if problem.severity != "hint":
                found = True
                name = path if len(copies) == 1 else path / copy.name
                click.echo(problem._replace(path=str(name)), err=True)
    return found


class Merged(NamedTuple):
    """The merged text, and the versions of programs that it does not have."""

    text: bytes
    overridden: list[bytes]


def merge(old: bytes, mine: bytes, theirs: bytes) -> Merged | None:
    """Merge two versions of a text: the person's (mine), which wins. None: another person has changed it as well."""
    if theirs in (old, mine):
        return Merged(mine, [])
    before, now, saved = entries(old), entries(theirs), entries(mine)
    if len(now) < len(before) or not all(map(_is_in_place, before, now)):
        return None
    versions: dict[bytes, deque[bytes | None]] = defaultdict(deque)  # None: no program has changed it
    surplus = Counter(map(trimmed, before))
    surplus.subtract(map(trimmed, saved))
    for one, other in zip(before, now, strict=False):
        name = trimmed(one)
        if one == other and surplus[name] > 0:
            surplus[name] -= 1  # the person has deleted it
        else:
            versions[name].append(None if one == other else other)
    merged = [(there and there.popleft()) or entry for entry in saved for there in (versions.get(trimmed(entry)),)]
    line = [raw for raw in chunks(theirs.removeprefix(BOM)) if is_generation(raw)][:1]
    mark = BOM if mine.startswith(BOM) else b""
    lost = [entry for there in versions.values() for entry in there if entry]
    return Merged(mark + b"".join([*line, *merged, *now[len(before) :]]), lost)


def entries(text: bytes) -> list[bytes]:
    """Split a text into entries and other lines, without the line that has the number. The last one gets a newline."""
    text = text.removeprefix(BOM)
    return [raw for raw in chunks(text if not text or text.endswith(b"\n") else text + b"\n") if not is_generation(raw)]


def _is_in_place(old: bytes, new: bytes) -> bool:
    """Return whether an entry is the same, or a program may have changed its status or variables in place."""
    return old == new or (len(old) == len(new) and value_of(old) == value_of(new))


def save(source: TqFile, old: bytes, new: bytes) -> list[bytes] | None:
    """Save a person's version of a queue file (new), made from an old one.

    Returns the entries that programs changed, and that the person's version replaced; None: another person has changed
    the file, and nothing was saved.
    """
    merged = None
    for _ in source.attempts("save", whole=True):
        with source.file as session:
            if session.known:
                end_file_lease(session.file)
                text = session.file.read(session.status.size, 0)
                merged = merge(old, new, text)
                if merged is None or merged.text == text or _replace(session, merged.text):
                    break
    with source.file:  # finds the claims again
        return None if merged is None else merged.overridden


def _replace(session: QueueFile, text: bytes) -> bool:
    if session.ledger.lined and not generations_in(text):  # the person has seen all changes, and removed the line
        mark, line, _ = line_for(text, session.ledger.number)
        text = mark + line + text[len(mark) :]
    temporary = sidecar_path(session.guard.real_path, ".save")
    with temporary_file(session.disk, temporary, session.file.path, ALL) as new:
        new.write(text)
    return session.swap(session.file, temporary, token_of(session.status))
