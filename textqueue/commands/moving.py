"""``sej tq archive | split | drain``: move messages elsewhere; ``sej tq edit``: opens an editor.

The text is checked before it is saved, as ``visudo`` does. The editor gets a copy. So workers can change the file
meanwhile, and no editor saves an old buffer over their marks.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from sej.cli.shared.command import PATH, Exit, IntRange
from sej.system.disk import OS
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
from textqueue.editing.merge import save
from textqueue.editing.message import Message
from textqueue.editing.tq_file import TqFile
from textqueue.format.grammar import STATUS_OF, MessageStatus
from textqueue.format.parser import value_of
from textqueue.reading.checker import check
from textqueue.reading.files import SUFFIX

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
