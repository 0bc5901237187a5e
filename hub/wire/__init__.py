"""The hub over gRPC: a server for a store, a client, and a copier that copies a journal and keeps the copy up to date.

Needs the extra ``hub`` (grpcio). The protocol is ``hub.proto``, explained in docs/formats/hub.md. The
modules, in the order in which they are best read::

    client, server, service                a connection; the server; its calls, as calls of hub.Store
    frames, status                         messages, columns and errors as bytes
    reading, named_readers                 reading from a hub; named readers
    copier                                 copies journals
    access                                 who may call what; memory and threads of the calls
    metrics                                Prometheus
    hub_pb2                                generated from hub.proto
"""

from __future__ import annotations

import os as _os

_os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # gRPC reads it when it is imported; see hub/certificates.py

try:
    from hub.certificates import ClientTLS, ServerTLS
    from hub.tokens import Tokens, make_token
    from hub.wire.client import Client, JournalState, Listed
    from hub.wire.copier import Copier, Progress
    from hub.wire.frames import Rows
    from hub.wire.named_readers import Reader
    from hub.wire.server import Server
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
