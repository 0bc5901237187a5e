"""``sej relay`` and ``sej forward``: from a database to a journal, and from a journal to another program.

See :mod:`sej.contrib.outbox` and :mod:`sej.contrib.forward`.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import click

from sej.cli.shared.exits import refuse
from sej.cli.shared.output import counted
from sej.cli.shared.parameters import DIRECTORY, PATH, SIZE, IntRange
from sej.cli.worker import is_supervised, supervise
from sej.system.process import stop_on_signals


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
            refuse(f"the database cannot be used: {error}")
        return
    if not is_supervised():
        raise SystemExit(supervise(1, reload=False))
    relay.run(stop=stop_on_signals())


@click.command
@DIRECTORY
@click.argument("url", metavar="URL")
@click.option("--reader", default="forward", show_default=True, help="The name under which the offset is kept.")
@click.option("--batch-bytes", type=SIZE, default="1M", show_default=True, help="About the most bytes of one request.")
@click.option("--once", is_flag=True, help="Send the existing messages, then end.")
def forward(directory: Path, url: str, once: bool, **options: Any) -> None:
    """Send a journal to another program over HTTP, each message at least once.

    URL says to which: http://HOST:4318 is an OpenTelemetry collector, for a journal of its exporters (OTLP).
    loki+http://HOST:3100?job=NAME is Loki, with the labels of the stream. post+http://HOST/PATH is any program, which
    gets JSON, one object per line as by `sej scan --json`. The same with https.

    While the receiver is away, the command waits and tries again. A message that it refuses becomes a dead letter.
    Headers, such as a token, are those of the variable OTEL_EXPORTER_OTLP_HEADERS for a collector, otherwise of
    SEJ_FORWARD_HEADERS, as in api-key=secret,tenant=shop. SIGTERM ends the command.

    Example: sej forward /var/lib/shop/telemetry http://localhost:4318
    """
    from sej.contrib.forward import Forwarder

    logging.basicConfig(format="sej: %(message)s", stream=sys.stderr)
    try:
        forwarder = Forwarder(directory, url, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    sent = forwarder.run_once() if once else forwarder.run(stop_on_signals())
    click.echo(counted(sent, "message"))
