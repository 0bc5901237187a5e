"""``sej relay``: move the rows of an outbox to a journal, see :mod:`sej.contrib.outbox`."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.output import counted
from sej.cli.shared.parameters import PATH, IntRange
from sej.cli.worker import is_supervised, supervise
from sej.system.process import set_from_handler


@click.command
@click.argument("database", metavar="DATABASE")
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--table", default="sej_outbox", show_default=True, help="The table of the outbox.")
@click.option("--batch-rows", type=IntRange(min=1), default=1000, show_default=True, help="The most rows of one batch.")
@click.option("--once", is_flag=True, help="Move what is committed, then end; prints the number of rows.")
def relay(database: str, directory: Path, once: bool, **options: Any) -> None:
    """Move the rows that programs commit to an outbox into a journal, each exactly once.

    DATABASE is the path of a database of SQLite, or a postgresql:// URL. DIR is a journal or that of a work queue; it
    is created if it is missing. The command waits for new rows, in a process of its own that is started again if it
    fails. SIGTERM ends it after the current batch.

    Example: sej relay shop.db orders
    """
    from sej.contrib.database import failure_of
    from sej.contrib.outbox import Relay

    logging.basicConfig(format="sej: %(message)s", stream=sys.stderr)
    relay = Relay(database, directory, **options)
    if once:
        try:
            click.echo(counted(relay.run_once(), "row"))
        except failure_of(database) as error:  # without the URL, which may have a password
            click.echo(f"sej: the database cannot be used: {error}", err=True)
            raise SystemExit(Exit.MISSING) from error
        return
    if not is_supervised():
        raise SystemExit(supervise(1, reload=False))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: set_from_handler(stop))
    relay.run(stop=stop)
