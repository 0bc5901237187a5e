"""A client that knows nothing but the original's protocol: run as a program, with its own stubs and no line of ours.

Arguments: the folder of the stubs, an address, a client id, a journal; messages come as JSON lines on standard input.
"""

import json
import sys

import grpc

sys.path.insert(0, sys.argv[1])
import hub_pb2  # type: ignore[import-not-found]
import hub_pb2_grpc  # type: ignore[import-not-found]

address, client_id, journal_dir = sys.argv[2:5]
with grpc.insecure_channel(address) as channel:
    stub = hub_pb2_grpc.HubStub(channel)
    messages = [
        hub_pb2.Message(
            Offset=row["offset"],
            Timestamp=row["timestamp"],
            Type=row["type"],
            Key=bytes.fromhex(row["key"]),
            Value=bytes.fromhex(row["value"]),
        )
        for row in map(json.loads, sys.stdin)
    ]
    try:
        stub.Put(hub_pb2.PutRequest(ClientID=client_id, JournalDir=journal_dir, Messages=messages), timeout=20)
        back = stub.Get(hub_pb2.GetRequest(ClientID=client_id, JournalDir=journal_dir, Offset=0), timeout=20)
    except grpc.RpcError as error:
        print(error.code().name, error.details())
    else:
        print("OK", len(back.Messages))
