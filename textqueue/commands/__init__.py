"""``sej tq``: text queues from a shell.

A queue is a ``.tq`` file, a directory of such files, or a pattern for names of files: every command takes each of them.
Every command prints the conflicts that it found (``TextQueue.conflicts``) on standard error.

The modules, in the order in which they are best read::

    opening                                the queue of a command, the names of messages, what is printed
    marking, listing                       add, done, fail, undo, check, claim; list, next, stats, follow, watch
    moving                                 archive, split, drain, edit
    installing                             files for editors, the language server
"""

from __future__ import annotations

import click

from textqueue.commands.installing import editors, lsp
from textqueue.commands.listing import follow, list_, next_, stats, watch
from textqueue.commands.marking import add, check, claim, done, fail, give_back, reopen, undo
from textqueue.commands.moving import archive, drain, edit, split

_COMMANDS = [
    add, next_, done, fail, give_back, reopen, undo, claim, list_, stats, watch, follow, check, edit, archive, split,
    drain, lsp, editors,
]  # fmt: skip


@click.group("tq", commands=_COMMANDS)
def app() -> None:
    """Text queues: .tq files that users edit while programs work on them.

    PATH is a .tq file, a directory of such files, or a quoted pattern such as 'jobs-*.tq'.
    """
