"""``sej tq edit``: opens an editor, and checks the text before it is saved, as ``visudo`` does.

The editor gets a copy. So workers can change the file meanwhile, and no editor saves an old buffer over their marks.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import click

from sej.cli.shared.exits import Exit
from textqueue.commands.opening import QUEUE, opened_files, refuse, shown
from textqueue.editing.save import save
from textqueue.format.parser import value_of
from textqueue.reading.checker import check

_QUESTION: Final = "(e)dit again, (x) leave without saving changes, or (s)ave anyway"


@click.command
@QUEUE
def edit(path: Path) -> None:
    """Edit a queue in $VISUAL or $EDITOR, and check the text before it is saved.

    The editor gets a copy, so workers may continue. What they and other programs change meanwhile is kept: their marks
    and the messages that they append. If both sides change the same message, your version is saved, and the command
    reports it. If you delete a line or change a status, it counts. Of equal messages, you delete one that is free.

    If the command is killed, your text is still in its copy, in a directory sej-tq-* below $TMPDIR or /tmp.

    Exit code 1: the editor failed, or the changes were not saved.

    Example: sej tq edit jobs.tq
    """
    with opened_files(path) as sources, tempfile.TemporaryDirectory(prefix="sej-tq-") as folder:
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
            for raw in save(source, old, new):
                text = shown(value_of(raw)).decode(errors="backslashreplace")
                click.echo(
                    f"sej: {source.path}: {text}: a program changed this message; your version was saved", err=True
                )


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
