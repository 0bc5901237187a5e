"""What the commands of this package need to read from a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hub.connecting import option_names, token_in


def hub_way(
    hub: str | None,
    token_file: Path | None,
    ca: Path | None,
    certificate: Path | None = None,
    key: Path | None = None,
    server_name: str | None = None,
) -> dict[str, Any]:
    """Return the options of a hub as arguments of ``pipeline.table`` and of jobs.

    Raises:
        click.UsageError: they do not fit together, or the token would cross a network in plain text.
    """
    token, tls = token_in(token_file), None
    if ca is not None or certificate is not None or server_name is not None:
        from hub.wire import ClientTLS

        tls = ClientTLS(ca, certificate, key, server_name)
    if hub is None and not (token is None and tls is None):
        raise click.UsageError("the options of tokens and certificates are for a hub: pass its address with --hub")
    if hub is not None:
        from pipeline.connection import Remote

        with option_names():
            Remote.named(hub, token, tls)
    return {"hub": hub, "token": token, "tls": tls}
