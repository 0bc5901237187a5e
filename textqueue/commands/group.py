"""``sej tq``: the group of all commands for text queues."""

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
