"""Senders for the section hub that cost little: HTTP/2 by hand, requests encoded before the start, one thread.

Run as a program: ``python -m benchmarks.hub_senders ADDRESS PREFIX CLIENTS SECONDS``. Each client has a connection and
sends batch after batch of 100 messages of 200 bytes: the next as soon as the last one was answered. Prints the number
of batches that were answered, and the CPU seconds of this process. Statuses are not read: the caller looks for the
messages on the hub.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import time

from hub.wire import hub_pb2 as pb

BATCH = 100
VALUE = b"v" * 200
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_FRAME_BYTES = 1 << 14
_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_WINDOW_BYTES = (1 << 16) - 1


def _frame(kind: int, flags: int, stream: int, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data))[1:] + struct.pack(">BBI", kind, flags, stream) + data


def _text(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def body(number: int) -> bytes:
    """The messages of a batch, as in a PutRequest."""
    first = number * BATCH
    messages = [pb.Message(Offset=first + n, Timestamp=first + n, Value=VALUE) for n in range(BATCH)]
    return pb.PutRequest(Messages=messages).SerializeToString()


class Sender:
    """One client with its connection."""

    def __init__(self, address: str, client: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        self._headers = (
            b"\x83\x86\x04" + _text(b"/hub.Hub/Put") + b"\x01" + _text(address.encode())
            + b"\x0f\x10" + _text(b"application/grpc") + b"\x00" + _text(b"te") + _text(b"trailers")
        )  # fmt: skip
        self._head = pb.PutRequest(ClientID=client, JournalDir="j").SerializeToString()
        self._window = _WINDOW_BYTES
        self._stream = 1
        self._buffer = b""
        self._waiting: bytes | None = None
        self.answered = 0
        self.socket.sendall(_PREFACE + _frame(_SETTINGS, 0, 0) + _frame(_WINDOW, 0, 0, struct.pack(">I", 1 << 30)))

    def send(self, data: bytes) -> None:
        """Send a batch, or keep it until the hub's window is open."""
        message = b"\x00" + struct.pack(">I", len(self._head) + len(data)) + self._head + data
        if len(message) > self._window:
            self._waiting = data
            return
        self._waiting = None
        self._window -= len(message)
        parts = [_frame(_HEADERS, _END_HEADERS, self._stream, self._headers)]
        for start in range(0, len(message), _FRAME_BYTES):
            last = start + _FRAME_BYTES >= len(message)
            parts.append(_frame(_DATA, _END_STREAM * last, self._stream, message[start : start + _FRAME_BYTES]))
        self.socket.sendall(b"".join(parts))
        self._stream += 2

    def receive(self) -> bool:
        """Read what has come; return whether the batch was answered."""
        self._buffer += self.socket.recv(1 << 16)
        done = False
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                break
            kind, flags = self._buffer[3], self._buffer[4]
            stream = int.from_bytes(self._buffer[5:9], "big")
            data, self._buffer = self._buffer[9 : 9 + size], self._buffer[9 + size :]
            if kind == _HEADERS and flags & _END_STREAM:
                self.answered += 1
                done = True
            elif kind == _SETTINGS and not flags & _ACK:
                self.socket.sendall(_frame(_SETTINGS, _ACK, 0))
            elif kind == _PING and not flags & _ACK:
                self.socket.sendall(_frame(_PING, _ACK, 0, data))
            elif kind == _WINDOW and not stream:
                self._window += int.from_bytes(data, "big")
                if self._waiting is not None:
                    self.send(self._waiting)
            elif kind == _GOAWAY:
                raise ConnectionError(data.decode("latin-1"))
        return done


def main(address: str, prefix: str, clients: int, seconds: float) -> None:
    """Send for some seconds."""
    bodies = [body(number) for number in range(max(64_000 // clients, 4))]
    senders = [Sender(address, f"{prefix}-{number}") for number in range(clients)]
    for sender in senders:  # the first batch creates the journal: not counted
        sender.send(bodies[0])
    chooser = selectors.DefaultSelector()
    for sender in senders:
        chooser.register(sender.socket, selectors.EVENT_READ, sender)
    resting = 0
    while resting < clients:
        for key, _ in chooser.select():
            resting += key.data.receive()
    print("ready", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + seconds
    cpu = time.process_time()
    for sender in senders:
        sender.send(bodies[1])
    while (left := end - time.monotonic()) > 0:
        for key, _ in chooser.select(left):
            sender = key.data
            if sender.receive() and sender.answered < len(bodies):
                sender.send(bodies[sender.answered])
    print(sum(sender.answered for sender in senders) - clients, time.process_time() - cpu, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
