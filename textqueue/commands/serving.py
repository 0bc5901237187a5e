"""``sej tq lsp``: the language server."""

from __future__ import annotations

import os

import click


@click.command
def lsp() -> None:
    """Run the language server for .tq files, on standard input and output. An editor starts it.

    It reports mistakes, colours messages by their status, shows which process has claimed a message, and offers to
    change the status or to add a variable. It changes the buffer of the editor only, never the file. It needs the extra
    `lsp`: pip install 'sej-journals[lsp]'.

    Example: sej tq lsp
    """
    from textqueue.lsp._server import make_server

    with os.fdopen(os.dup(1), "wb") as output:  # the server closes it at its end, and this command flushes its own
        make_server().start_io(stdout=output)
