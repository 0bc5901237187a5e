"""Readers that want all of a journal and take what comes, or nothing: run as a program of its own.

Arguments: an address, a client id, a journal, and how many readers of each kind. Each reader has a connection of its
own. Prints a line when every reader has called, then, for each line on standard input, how many answers
came.
"""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import grpc

from hub.wire import hub_pb2 as pb

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)]
"""The caller's side keeps no more of an unread stream than this."""


def unread(channel: grpc.Channel, method: str, request: bytes) -> Any:
    """A stream that is opened and never read."""
    call: Any = channel.unary_stream(f"/hub.Hub/{method}", None, None)
    return call(request)


def again_and_again(channel: grpc.Channel, request: bytes, came: Callable[[], object]) -> None:
    """Ask for everything, without a pause; an answer is thrown away."""
    get: Any = channel.unary_unary("/hub.Hub/Get", None, len)

    def ask() -> None:
        get.future(request, timeout=60).add_done_callback(answered)

    def answered(answer: Any) -> None:
        if answer.code() is grpc.StatusCode.OK:
            came()
        if answer.code() is not grpc.StatusCode.CANCELLED:
            ask()

    ask()


def main(address: str, client_id: str, journal_dir: str, reads: str, follows: str, gets: str) -> None:
    count = itertools.count()
    everything = pb.GetRequest(ClientID=client_id, JournalDir=journal_dir, MaxMessages=2**32 - 1, MaxBytes=2**63)
    whole = pb.ReadRequest(ClientID=client_id, JournalDir=journal_dir)
    kinds = ["Read"] * int(reads) + ["Follow"] * int(follows) + ["Get"] * int(gets)
    channels = [grpc.insecure_channel(address, options=[*OPTIONS, *SMALL_WINDOW]) for _ in kinds]
    held = []
    for kind, channel in zip(kinds, channels, strict=True):
        if kind == "Get":
            again_and_again(channel, everything.SerializeToString(), lambda: next(count))
        else:
            held.append(unread(channel, kind, (whole if kind == "Read" else everything).SerializeToString()))
    print("ready", flush=True)
    for _ in sys.stdin:
        print(next(count), flush=True)
    for channel in channels:
        channel.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
