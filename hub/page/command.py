"""``sej ui``: the web page from the command line."""

from __future__ import annotations

from pathlib import Path

import click

from sej.cli.shared.parameters import PATH, IntRange
from sej.system.signals import stop_on_signals


@click.command
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=IntRange(0, (1 << 16) - 1), default=8080, show_default=True, help="0: a free one.")
@click.option("--certificate", type=PATH, help="The server's certificate, PEM.")
@click.option("--key", type=PATH, help="Its private key, PEM.")
@click.option("--tokens", type=PATH, help="The file of tokens; without it, every visitor is admitted.")
@click.option("--allow-changes", is_flag=True, help="Offer changes too; without it the page only shows.")
def ui(
    paths: tuple[Path, ...],
    host: str,
    port: int,
    certificate: Path | None,
    key: Path | None,
    tokens: Path | None,
    allow_changes: bool,
) -> None:
    """Serve a web page for journals, sharded journals, work queues, hubs and text queues.

    A PATH is a SEJ directory, a directory of them, a hub's root or a .tq file. The page is at http://127.0.0.1:8080
    until SIGTERM or an interrupt. Any address except the loopback interface needs --certificate, --key and --tokens.

    Example: sej ui data jobs.tq
    """
    from hub.page.serving import PageServer

    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key need each other")
    stop = stop_on_signals()
    try:
        server = PageServer(
            paths, host, port, certificate=certificate, key=key, tokens=tokens, allow_changes=allow_changes
        )
    except ValueError as error:
        raise click.UsageError(_with_options(str(error))) from None
    click.echo(f"the page is at {server.url}")
    try:
        server.serve(stop)
    finally:
        server.close()


def _with_options(text: str) -> str:
    """Name the options instead of the arguments."""
    return text.replace("pass certificate, key and tokens", "use --certificate, --key and --tokens")
