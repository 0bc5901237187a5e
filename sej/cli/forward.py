"""``sej forward``: send a journal to a collector, Loki or another program, see :mod:`sej.contrib.forward`."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from sej.cli.shared.output import counted
from sej.cli.shared.parameters import PATH, SIZE
from sej.system.process import stop_on_signals


@click.command
@click.argument("directory", metavar="DIR", type=PATH)
@click.argument("url", metavar="URL")
@click.option("--reader", default="forward", show_default=True, help="The name under which the offset is kept.")
@click.option("--batch-bytes", type=SIZE, default="1M", show_default=True, help="About the most bytes of one request.")
@click.option("--once", is_flag=True, help="Send the existing messages, then end.")
def forward(directory: Path, url: str, reader: str, batch_bytes: int, once: bool) -> None:
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
        forwarder = Forwarder(directory, url, reader=reader, batch_bytes=batch_bytes)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    sent = forwarder.run_once() if once else forwarder.run(stop_on_signals())
    click.echo(counted(sent, "message"))
