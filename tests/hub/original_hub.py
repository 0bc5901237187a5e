"""The part of an original hub, run as a program with its own stubs and no line of ours.

It knows Put and Get. Put drops what it has, appends what it expects, and answers a gap with the error that the gRPC
library of the original makes of an empty answer; Get returns nothing. Arguments: the folder of the stubs, the root.
"""

import os
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

sys.path.insert(0, sys.argv[1])
import hub_pb2  # type: ignore[import-not-found]
import hub_pb2_grpc  # type: ignore[import-not-found]

ROOT = Path(sys.argv[2])
LOCK = threading.Lock()
NEXT: dict[Path, int] = {}


class Hub(hub_pb2_grpc.HubServicer):  # type: ignore[misc]
    def Put(self, request: Any, context: grpc.ServicerContext) -> Any:
        jnl = ROOT / f"{request.ClientID}.{request.JournalDir}" / "jnl"
        with LOCK:
            jnl.mkdir(parents=True, exist_ok=True)
            file = os.open(jnl / f"{0:016x}.jnl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            for message in request.Messages:
                due = NEXT.setdefault(jnl, 0)
                if message.Offset > due:
                    context.abort(
                        grpc.StatusCode.INTERNAL, "grpc: error while marshaling: proto: Marshal called with nil"
                    )
                if message.Offset == due:
                    key, value = message.Key, message.Value
                    head = struct.pack(">QqBB", message.Offset, message.Timestamp, message.Type, len(key))
                    size = struct.pack(">i", len(head) + len(key) + 4 + len(value) + 4)
                    os.write(file, head + key + struct.pack(">i", len(value)) + value + size)
                    NEXT[jnl] += 1
            os.close(file)
        return hub_pb2.PutResponse()

    def Get(self, request: Any, context: grpc.ServicerContext) -> Any:
        return hub_pb2.GetResponse()


server = grpc.server(ThreadPoolExecutor(4))
hub_pb2_grpc.add_HubServicer_to_server(Hub(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
server.stop(None)
