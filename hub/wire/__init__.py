"""The hub over gRPC: a server before a store, a client, and a copier that brings a journal over and keeps it up.

Needs the extra ``hub`` (grpcio). The protocol is ``hub.proto``; docs/formats/hub.md explains it.
"""

from __future__ import annotations

try:
    from hub.wire.access import Tokens, make_token
    from hub.wire.client import Client, Listed, Standing
    from hub.wire.copier import Copier, Progress
    from hub.wire.server import Server
    from hub.wire.tls import ClientTLS, ServerTLS
except ModuleNotFoundError as error:
    error.add_note("hub.wire needs the extra `hub`: pip install 'sej-journals[hub]'")
    raise

__all__ = [
    "Client",
    "ClientTLS",
    "Copier",
    "Listed",
    "Progress",
    "Server",
    "ServerTLS",
    "Standing",
    "Tokens",
    "make_token",
]
