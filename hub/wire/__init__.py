"""The hub over gRPC: a server for a store, a client, and a copier that copies a journal and keeps the copy up to date.

Needs the extra ``hub`` (grpcio). The protocol is ``hub.proto``, explained in docs/formats/hub.md.
"""

from __future__ import annotations

import os as _os

_os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC reads it when it is imported; see hub/wire/forks.py

try:
    from hub.wire.access import Tokens, make_token
    from hub.wire.client import Client, JournalState, Listed
    from hub.wire.copier import Copier, Progress
    from hub.wire.named import Reader
    from hub.wire.rows import Rows
    from hub.wire.server import Server
    from hub.wire.tls import ClientTLS, ServerTLS
except ModuleNotFoundError as error:
    error.add_note("hub.wire needs the extra `hub`: pip install 'sej-journals[hub]'")
    raise

__all__ = [
    "Client",
    "ClientTLS",
    "Copier",
    "JournalState",
    "Listed",
    "Progress",
    "Reader",
    "Rows",
    "Server",
    "ServerTLS",
    "Tokens",
    "make_token",
]
