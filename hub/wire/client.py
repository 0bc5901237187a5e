"""The client: one connection to a hub, for one client id.

Every call has a deadline, except streams, which end with the connection: pings detect a dead peer. Errors are raised as
the hub's own types (:mod:`hub.wire.status`). The connection is made at the first call. No client works in a process
that was forked from one that used gRPC (:mod:`hub.certificates`).

An original hub knows only ``Put`` and ``Get``, and its ``Get`` returns nothing. Sending to it works, by ``Put``. What
it cannot do raises :class:`hub.NotSupportedError`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import grpc

from hub.batch import Batch
from hub.certificates import ClientTLS, absolute_address, is_loopback, keep_unused, out_of_date, use_grpc
from hub.errors import AccessError, NotSupportedError, UnavailableError
from hub.jobs import Staged
from hub.naming import check_client
from hub.readers import Kept
from hub.wire import hub_pb2 as pb
from hub.wire.frames import (
    BATCH_BYTES,
    MAX_MESSAGE_BYTES,
    Rows,
    batches,
    bits_of,
    copy_request,
    from_wire,
    open_encoded,
    open_rows,
    stage_request,
    to_wire,
)
from hub.wire.status import COMPRESSED, ORIGINAL, HandshakeError, from_rpc_error
from sej.checks import COUNT, TEXT, Seconds, instance_of, optional, require, seconds
from sej.codec import encode
from sej.codec.format import MAX_OFFSET
from sej.errors import ClosedError, SejError
from sej.fork import notice_fork, watch_forks
from sej.message import Message
from sej.system.lifecycle import Closing
from sej.system.process import keep_freed_up_to

_CONNECT_MS: Final = 5_000
"""How long gRPC waits for a connection: a few round trips with TLS on a slow line. One that is refused ends sooner."""

_LARGE: Final = ("PutEncoded", "Stage")
"""Calls whose request has messages, in addition to streams. An original hub knows none of them, and maybe no gzip."""
_JOB_S: Final = 600.0
"""A commit appends all rows of a job before it answers."""
_HOLD_S: Final = 60.0
_ABORT_S: Final = 5.0
"""An abort only removes files, and is not worth a long wait."""


class JournalState(NamedTuple):
    """The state of a journal on the hub.

    Attributes:
        known: True if the hub has it; if not, it starts with the first message sent.
        first_offset: the first offset that the hub still has.
        next_offset: the offset that the hub expects next; everything below is durable.
    """

    known: bool
    first_offset: int
    next_offset: int


class Listed(NamedTuple):
    """One journal on the hub.

    Attributes:
        client: its client id.
        journal_dir: its name.
        first_offset: the first offset that the hub still has.
        next_offset: the offset that the hub expects next; everything below is durable.
        size: about how many bytes its messages take.
        id: the journal's identity, which changes if it is re-created; empty if it has none.
        messages: how many messages it has: offsets without recorded gaps; None: messages at its end are damaged.
    """

    client: str
    journal_dir: str
    first_offset: int
    next_offset: int
    size: int
    id: bytes
    messages: int | None = None


class Client(Closing):
    """A connection to a hub; threads may share it.

    After :meth:`close` every call raises :class:`~sej.ClosedError`.

    Attributes:
        address: the hub's address.
        client_id: the id of this client.
    """

    def __init__(
        self,
        address: str,
        *,
        client_id: str = "",
        token: str | None = None,
        tls: ClientTLS | None = None,
        allow_plaintext: bool = False,
        timeout_s: Seconds = 30.0,
        keepalive_s: Seconds = 20.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        compress: bool = False,
    ) -> None:
        """Set the hub's address; connects at the first call.

        Args:
            address: ``host:port``, or ``unix:path`` for a Unix socket.
            client_id: the id of this client: letters, digits, ``_``, ``-`` and dots between them; not needed to read
                other clients' journals.
            token: sent with every call.
            tls: the authority to trust; None: plain text.
            allow_plaintext: use plain text beyond the loopback interface.
            timeout_s: the most seconds for a call.
            keepalive_s: seconds between pings of a silent peer.
            max_message_bytes: the most bytes of a reply.
            compress: send and receive messages with gzip, which saves bytes and costs CPU time. An original hub gets
                them as they are.

        Raises:
            ValueError: a token would cross a network in plain text, or is malformed, or the files of ``tls`` are not
                PEM, or the address has no port.
            OSError: a file of ``tls`` cannot be read.
            InvalidNameError: the client id has characters that are not allowed.
        """
        timeout_s, keepalive_s = seconds("timeout_s", timeout_s), seconds("keepalive_s", keepalive_s)
        require(address=address, client_id=client_id, token=token, allow_plaintext=allow_plaintext, timeout_s=timeout_s)
        require(keepalive_s=keepalive_s, max_message_bytes=max_message_bytes, compress=compress)
        require(tls=(tls, optional(instance_of(ClientTLS))))
        self.address = absolute_address(address)
        if token and not (token.isascii() and token.isprintable()):
            raise ValueError("a token must be printable ASCII on one line")
        if tls is not None:
            tls.pem()  # they are read again for the connection; this reports errors early
            tls = tls.absolute()
        if client_id:
            check_client(client_id)
        if token and tls is None and not allow_plaintext and not is_loopback(address):
            raise ValueError(
                f"the token for {address} would cross the network in plain text; pass tls=ClientTLS(...) or"
                " allow_plaintext=True"
            )
        self.client_id = client_id
        self._tls = tls
        self._timeout_s = timeout_s
        self._metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()
        if compress:
            self._metadata += (COMPRESSED,)
        self._gzip = grpc.Compression.Gzip if compress else None
        self._options: list[tuple[str, int | str]] = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", int(keepalive_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(min(keepalive_s, 10.0) * 1000)),
            ("grpc.http2.ping_timeout_ms", int(min(keepalive_s, 10.0) * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.min_reconnect_backoff_ms", _CONNECT_MS),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 5_000),
        ]
        if tls is not None and tls.server_name is not None:
            self._options.append(("grpc.ssl_target_name_override", tls.server_name))
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._closed = False
        self._is_original: bool | None = None
        self._credentials: grpc.ChannelCredentials | None = None
        self._stamp: object = None
        self._calls: dict[tuple[grpc.Channel, str], Any] = {}
        """Functions of the channel by the name of the call."""

    # --- writing

    def put(self, journal_dir: str, messages: Iterable[Message]) -> int:
        """Send messages with consecutive offsets, in one or more calls; they are durable on the hub when it returns.

        Returns:
            The offset that the hub expects next. An original hub does not report it: then, the offset after the last
            message. Such a hub hands messages to its kernel before it answers, and does not sync them.

        Raises:
            SejError: as :meth:`hub.Store.put`.
            UnavailableError: the hub cannot be reached in time.
            TypeError: messages is not an iterable of :class:`sej.Message`.
        """
        require(messages=messages, journal_dir=(journal_dir, TEXT))
        expected = -1
        for batch in batches(messages):
            expected = self._put(journal_dir, batch)
        return expected if expected >= 0 else self.end_offset(journal_dir)

    def _put(self, journal_dir: str, batch: list[Message]) -> int:
        name = self._named(journal_dir)
        if not self._is_original:
            encoded = copy_request(b"".join([encode(*message) for message in batch]), self.client_id, journal_dir)
            with suppress(NotSupportedError):
                answer: pb.PutResponse = self.call("PutEncoded", encoded, pb.PutResponse, journal=name)
                return answer.NextOffset
        request = pb.PutRequest(ClientID=self.client_id, JournalDir=journal_dir, Messages=to_wire(batch))
        self.call("Put", request, pb.PutResponse, journal=name)
        return batch[-1].offset + 1  # an original hub does not report it

    def copy(
        self, journal_dir: str, chunks: Iterable[bytes], *, create: bool = True, accept_gaps_from: int | None = None
    ) -> Iterator[int]:
        """Send encoded messages as stored in a journal; yields offsets below which everything is durable.

        Args:
            journal_dir: the journal's name on the hub.
            chunks: each holds whole messages; read in another thread, as fast as the hub receives them.
            create: whether the first chunk may start a journal that the hub does not have.
            accept_gaps_from: the offset that the hub expects: messages that are missing from there on, before any
                chunk, are lost. The hub records them as gaps. None: it refuses chunks after a gap.

        Raises:
            SejError: as :meth:`hub.Store.put_encoded`.
            UnavailableError: the connection was lost.
            DecodeError: for an original hub, which takes no chunks, the messages are decoded, and these bytes are not
                whole messages.
        """
        if self._original(journal_dir):
            for chunk in chunks:
                yield self.put(journal_dir, _decoded(chunk))
            return
        failure: list[Exception] = []

        def requests() -> Iterator[bytes]:
            names: tuple[str, ...] = (self.client_id, journal_dir)
            due = accept_gaps_from
            try:
                for chunk in chunks:
                    lost_from = due if due is not None and due < int.from_bytes(chunk[:8], "big") else None
                    yield copy_request(chunk, *names, create=create and bool(names), lost_from=lost_from)
                    names = ()
                    due = None if due is None else _next_offset(chunk)
            except Exception as error:
                failure.append(error)  # what was sent so far is acknowledged first

        call: Any = self._open().stream_stream("/hub.Hub/Copy", None, pb.CopyResponse.FromString)
        for answer in self._stream(call, requests(), self._named(journal_dir), failure):
            yield answer.NextOffset
        if failure:
            raise failure[0]

    # --- reading

    def where(self, journal_dir: str, *, client_id: str | None = None, own: range | None = None) -> JournalState:
        """Return the state of a journal on the hub, by default of this client.

        Args:
            journal_dir: the journal's name on the hub.
            client_id: the journal's client; default: this client.
            own: the offsets that the caller's copy of it has. If the hub's do not fit to them, the hub counts and logs
                it.
        """
        bounds = {} if own is None else {"First": own.start, "End": own.stop}
        answer = self._where(journal_dir, client_id, **bounds)
        return JournalState(answer.Known, answer.FirstOffset, answer.NextOffset)

    def identity(self, journal_dir: str, *, client_id: str | None = None) -> bytes:
        """Return a journal's identity, which changes if it is re-created; empty if the hub does not report one."""
        return bytes(self._where(journal_dir, client_id).ID)

    def end_offset(self, journal_dir: str, *, client_id: str | None = None) -> int:
        """Return the offset that the hub expects next of a journal, by default of this client; 0 if none exists."""
        return self.where(journal_dir, client_id=client_id).next_offset

    def find_time(self, journal_dir: str, timestamp: int, *, client_id: str | None = None) -> int:
        """Return the first offset from a timestamp on; if none exists, the offset that the hub expects next.

        Args:
            journal_dir: the journal's name on the hub.
            timestamp: ns since the epoch.
            client_id: the journal's client; default: this client.
        """
        return int(self._where(journal_dir, client_id, Timestamp=timestamp).TimeOffset)

    def journals(self, client_id: str = "") -> list[Listed]:
        """Return the journals that this client may read, with their state; of one client id, or of all."""
        answer = self.call("List", pb.ListRequest(ClientID=client_id), pb.ListResponse)
        return [
            Listed(
                j.ClientID, j.JournalDir, j.FirstOffset, j.NextOffset, j.Size, j.ID,
                j.Messages if j.HasField("Messages") else None,
            )
            for j in answer.Journals
        ]  # fmt: skip

    def read_encoded(
        self,
        journal_dir: str,
        offset: int,
        stop: int = 0,
        *,
        client_id: str | None = None,
        skip: bool = False,
        verify: bool = True,
    ) -> Iterator[bytes | memoryview]:
        """Yield whole messages as stored in the journal, in large chunks, each without a gap in its offsets.

        Args:
            journal_dir: the journal's name on the hub.
            offset: the first message's offset.
            stop: end with the chunk that reaches this offset; 0: with the last existing message.
            client_id: the journal's client; default: this client.
            skip: skip damaged messages; the offsets of the others show where.
            verify: check blocks against their checksums; without it a changed byte inside a value is not noticed.

        Raises:
            SejError: as :meth:`hub.Store.get`; UnavailableError if the connection was lost: continue from there.
        """
        for answer in self._read(journal_dir, offset, stop, client_id, skip, verify):
            yield open_encoded(pb.ReadResponse, answer)[1]

    def read_columns(
        self,
        journal_dir: str,
        offset: int,
        stop: int = 0,
        *,
        columns: Iterable[str] = ("timestamp", "type", "key", "value"),
        since: int | None = None,
        until: int | None = None,
        client_id: str | None = None,
        skip: bool = False,
        verify: bool = True,
    ) -> Iterator[Rows]:
        """Return an iterator of messages as columns.

        Columns that are not requested are not sent, nor are most messages of other times.

        Args:
            journal_dir: the journal's name on the hub.
            offset: the first message's offset.
            stop: end before this offset; 0: with the last existing message.
            columns: some of ``"timestamp"``, ``"type"``, ``"key"`` and ``"value"``. With a time, timestamps are always
                sent.
            since: messages older than this (ns since the epoch) may be left out: compare the time of each.
            until: messages newer than this may be left out.
            client_id: the journal's client; default: this client.
            skip: as for :meth:`read_encoded`.
            verify: as for :meth:`read_encoded`.

        Raises:
            ValueError: there is no column of this name.
            InvalidMessageError: columns of the hub's answer do not fit the number of its messages.
            SejError: as :meth:`read_encoded`.

        Example:
            >>> import tempfile, hub, sej
            >>> from hub.wire import Server
            >>> with hub.Store(tempfile.mkdtemp()) as store, Server(store, "127.0.0.1:0") as server:
            ...     with Client(server.address, client_id="EWR") as client:
            ...         _ = client.put("orders", [sej.Message(0, 1, 0, b"key", b"value")])
            ...         for rows in client.read_columns("orders", 0, columns=["key"]):
            ...             print(rows.first, rows.found.messages, rows.found.key_data, rows.found.value_data)
            0 1 b'key' b''
        """
        names = tuple(columns)
        bits = bits_of(names, since, until)
        times = {"Since": since, "Until": until} if bits else {}
        answers = self._read(journal_dir, offset, stop, client_id, skip, verify, Columns=bits, **times)
        keys, values = "key" in names, "value" in names
        return (rows for answer in answers for rows in open_rows(answer, stop, bits, keys=keys, values=values))

    def _read(
        self, journal_dir: str, offset: int, stop: int, client_id: str | None, skip: bool, verify: bool, **more: Any
    ) -> Iterator[bytes]:
        request = pb.ReadRequest(
            ClientID=self._who(client_id), JournalDir=journal_dir, Offset=offset, StopOffset=stop, Skip=skip,
            Verify=verify, **more,
        )  # fmt: skip
        call: Any = self._open().unary_stream("/hub.Hub/Read", pb.ReadRequest.SerializeToString, None)
        return self._stream(call, request, self._named(journal_dir, client_id))

    def get(
        self,
        journal_dir: str,
        offset: int,
        max_messages: int = 1000,
        *,
        max_bytes: int = 0,
        client_id: str | None = None,
        verify: bool = True,
    ) -> list[Message]:
        """Return messages from an offset on; an empty list at the end.

        Args:
            journal_dir: the journal's name on the hub.
            offset: the first offset.
            max_messages: the most messages to return.
            max_bytes: about the most bytes to return; 0: the hub decides.
            client_id: the journal's client; default: this client.
            verify: check blocks against their checksums, as for :meth:`read_encoded`.

        Raises:
            CorruptionError: the hub's copy is damaged there; names hub, journal and offset.
            SejError: as :meth:`hub.Store.get`.
            NotSupportedError: this is an original hub.
        """
        request = self._get_request(journal_dir, offset, max_messages, max_bytes, client_id, verify)
        answer = self.call("Get", request, pb.GetResponse, journal=self._named(journal_dir, client_id))
        found = from_wire(answer.Messages)
        if not found and self._original(journal_dir, client_id):
            raise NotSupportedError(f"hub at {self.address}: {ORIGINAL}")
        return found

    def follow(
        self,
        journal_dir: str,
        offset: int,
        max_messages: int = 1000,
        *,
        client_id: str | None = None,
        verify: bool = True,
    ) -> Iterator[list[Message]]:
        """Yield messages from an offset on, in batches as they are appended; close the iterator to stop.

        Args:
            journal_dir: the journal's name on the hub.
            offset: the first offset.
            max_messages: the most messages of a batch.
            client_id: the journal's client; default: this client.
            verify: as for :meth:`get`.

        Raises:
            SejError: as :meth:`hub.Store.get`; UnavailableError if the connection was lost: continue from there.
        """
        call = self._open().unary_stream("/hub.Hub/Follow", pb.GetRequest.SerializeToString, pb.GetResponse.FromString)
        request = self._get_request(journal_dir, offset, max_messages, 0, client_id, verify)
        for answer in self._stream(call, request, self._named(journal_dir, client_id)):
            yield from_wire(answer.Messages)

    def close(self) -> None:
        """Close the connection; calls in progress end."""
        notice_fork()
        with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        keep_unused((self._channel, self._calls, self._credentials))
        self._channel = self._credentials = None
        self._calls = {}

    def __repr__(self) -> str:
        """Show address and client id."""
        return f"<hub.wire.Client {self.address} {self.client_id!r}>"

    # --- internals

    def hold(self, request: pb.HoldRequest) -> list[Kept]:
        """Take a reader, or renew its lease; see :class:`hub.wire.named_readers.HeldReaders`."""
        original = "keeps no offsets for readers; keep the offset yourself"
        answer = self.call("Hold", request, pb.HoldResponse, timeout_s=_HOLD_S, original=original)
        return [Kept(place.Offset, place.Kept) for place in answer.Places]

    def _where(self, journal_dir: str, client_id: str | None, **more: int) -> pb.WhereResponse:
        request = pb.WhereRequest(ClientID=self._who(client_id), JournalDir=journal_dir, **more)
        journal = self._named(journal_dir, client_id)
        answer: pb.WhereResponse = self.call("Where", request, pb.WhereResponse, journal=journal)
        self._is_original = False
        return answer

    def call(
        self, name: str, request: Any, answer: Any, *, journal: str = "", timeout_s: float | None = None,
        original: str = "",
    ) -> Any:  # fmt: skip
        """Make a call, and return its answer.

        Args:
            name: the call.
            request: its request; bytes are encoded already.
            answer: the class of its answer.
            journal: the client and journal of the call, for errors.
            timeout_s: seconds until an error; None: those of the client.
            original: what an original hub does not do, and what to do instead, for the error.

        Raises:
            NotSupportedError: the hub does not know the call, because it is an original hub.
            SejError: the hub's error.
        """
        channel, calls = self._open(), self._calls
        if (channel, name) not in calls:
            encode = None if isinstance(request, bytes) else type(request).SerializeToString
            calls[channel, name] = channel.unary_unary(f"/hub.Hub/{name}", encode, answer.FromString)
        try:
            with self._translating(journal):
                return calls[channel, name](
                    request,
                    timeout=timeout_s or self._timeout_s,
                    metadata=self._metadata,
                    compression=self._gzip if name in _LARGE else None,
                )
        except NotSupportedError as error:
            if not original:
                raise
            raise NotSupportedError(f"the hub at {self.address} is a hub of the Go SEJ: it {original}") from error

    def _stream(self, call: Any, request: Any, journal: str, failure: list[Exception] | None = None) -> Iterator[Any]:
        """Yield the answers of a call, which ends with this iterator."""
        with self._translating(journal, failure):
            answers = call(request, metadata=self._metadata, compression=self._gzip)
            try:
                yield from answers
            finally:
                answers.cancel()

    def _original(self, journal_dir: str, client_id: str | None = None) -> bool:
        """Whether this is an original hub; asked once."""
        if self._is_original is None:
            try:
                self.where(journal_dir, client_id=client_id)
            except NotSupportedError:
                pass
            except AccessError:
                self._is_original = False  # an original hub knows no tokens
        return bool(self._is_original)

    def _who(self, client_id: str | None) -> str:
        return self.client_id if client_id is None else client_id

    def _named(self, journal_dir: str, client_id: str | None = None) -> str:
        """Return a journal's name for errors."""
        return f"{self._who(client_id)}.{journal_dir}"

    def _get_request(
        self, journal_dir: str, offset: int, max_messages: int, max_bytes: int, client_id: str | None, verify: bool
    ) -> pb.GetRequest:
        COUNT("offset", offset)
        return pb.GetRequest(
            ClientID=self._who(client_id),
            JournalDir=journal_dir,
            Offset=offset,
            MaxMessages=max_messages,
            MaxBytes=max_bytes,
            Unverified=not verify,
        )

    def _open(self) -> grpc.Channel:
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed; open another one", path=f"hub at {self.address}")
            use_grpc(f"the client of {self.address}")
            if self._channel is None:
                watch_forks(self)
                keep_freed_up_to(2 * BATCH_BYTES)
                if self._tls is None:
                    self._channel = grpc.insecure_channel(self.address, options=self._options)
                else:
                    if self._credentials is None:
                        self._stamp, self._credentials = (
                            self._tls.stamp(),
                            grpc.ssl_channel_credentials(*self._tls.pem()),
                        )
                    self._channel = grpc.secure_channel(self.address, self._credentials, options=self._options)
            return self._channel

    def _unconnected(self, tls: ClientTLS, error: SejError) -> SejError:
        """Return the reason of a failed connection; if files were renewed, the next call makes a new connection.

        Streams that still have the old connection continue.
        """
        try:
            wrong = out_of_date(tls.certificate)
            with self._lock:
                if (stamp := tls.stamp()) != self._stamp:
                    self._credentials = grpc.ssl_channel_credentials(*tls.pem())
                    self._stamp, self._channel, self._calls = stamp, None, {}
                    renewed = "the connection failed, and its certificates were renewed: the next call uses them"
                    error = UnavailableError(f"hub at {self.address}: {renewed}")
        except (OSError, ValueError):  # they are just being renewed: the next failure looks again
            return error
        return (
            error
            if wrong is None
            else HandshakeError(f"hub at {self.address}: {wrong}; a running client reads it again")
        )

    @contextmanager
    def _translating(self, journal: str = "", failure: list[Exception] | None = None) -> Iterator[None]:
        """Raise a call's error as the hub's own type, with the journal; if our own side failed first, raise that."""
        try:
            yield
        except grpc.RpcError as error:
            if failure:
                raise failure[0] from None
            meant = from_rpc_error(error, self.address, journal, tls=self._tls is not None)
            if isinstance(meant, NotSupportedError):
                self._is_original = True
            if self._tls is not None and isinstance(meant, UnavailableError) and meant.path is None:
                meant = self._unconnected(self._tls, meant)
            raise meant from error
        except ValueError as error:
            if self._closed:
                raise ClosedError(
                    "the client was closed during the call; open another one", path=f"hub at {self.address}"
                ) from error
            raise


class JobCalls:
    """Jobs that append to a client's journals, with offsets that the hub assigns; see `hub/jobs.py`.

    Every call may be sent again after any failure.

    Example:
        >>> import tempfile, hub
        >>> from hub.wire import Server
        >>> from sej.codec import encode
        >>> from sej.system.checksum import crc32c
        >>> rows = encode(0, 1, 0, b"key", b"value")
        >>> with hub.Store(tempfile.mkdtemp()) as store, Server(store, "127.0.0.1:0") as server:
        ...     with Client(server.address, client_id="berlin") as client:
        ...         jobs = JobCalls(client)
        ...         size = jobs.stage("01", "02", 0, 0, rows)
        ...         files = [Staged("02", 0, 1, size, crc32c(rows))]
        ...         jobs.seal("01", files)
        ...         jobs.commit("01", "orders", 0, files)
        True
    """

    def __init__(self, client: Client) -> None:
        """Use a client, whose id names the journals."""
        self._client = client

    def stage(self, job: str, task: str, shard: int, position: int, data: bytes | memoryview) -> int:
        """Send a part of a file of rows that a task writes for a shard; return the size that the file has now.

        It may be sent again after any failure. Rows are in no journal before :meth:`commit`.

        Args:
            job: the job's id, in hexadecimal digits.
            task: the id of one attempt of a task, in hexadecimal digits.
            shard: the shard's index.
            position: where in the file the bytes begin.
            data: whole messages; in each file the offsets count from 0.

        Raises:
            GapError: the hub lost bytes before these: the task must start from scratch.
            NotSupportedError: this is an original hub.
            SejError: as :meth:`hub.Store.put`.
        """
        request = pb.StageRequest(ClientID=self._client.client_id, Job=job, Task=task, Shard=shard, Position=position)
        return int(self._call("Stage", stage_request(request, data), pb.StageResponse).Size)

    def seal(self, job: str, files: Iterable[Staged]) -> None:
        """Make the files of a task durable on the hub, and compare them with what the task has sent.

        Raises:
            StagedRowsError: the hub has other bytes.
        """
        self._call(
            "Seal", pb.SealRequest(ClientID=self._client.client_id, Job=job, Files=_files(files)), pb.SealResponse
        )

    def commit(
        self, job: str, prefix: str, bits: int, files: Iterable[Staged], *, name: str | None = None, number: int = 0
    ) -> bool:
        """Append the rows of a job to the client's journals: all of them or none, once.

        It may be sent again after any failure.

        Args:
            job: the job's id.
            prefix: prefix of the shards.
            bits: 2**bits shards; 0: one journal with the prefix as its name.
            files: what its tasks staged, in the order in which the rows are appended.
            name: the application whose jobs are numbered; None: none.
            number: the job's number under that name; rows of a number that was committed before are dropped.

        Returns:
            False if an earlier call has appended them.

        Raises:
            StagedRowsError: the hub does not have these files; nothing was appended.
        """
        request = pb.CommitRequest(
            ClientID=self._client.client_id, Job=job, Prefix=prefix, Bits=bits, Name=name or "", Number=number,
            Files=_files(files),
        )  # fmt: skip
        return bool(self._call("Commit", request, pb.CommitResponse).Written)

    def abort(self, job: str) -> None:
        """Remove what the tasks of a job staged, unless it is committed."""
        request = pb.AbortRequest(ClientID=self._client.client_id, Job=job)
        self._call("Abort", request, pb.AbortResponse, _ABORT_S)

    def _call(self, name: str, request: Any, answer: Any, timeout_s: float = _JOB_S) -> Any:
        original = "takes no jobs; write on a disk that the driver and all executors share"
        journal = self._client.client_id
        return self._client.call(name, request, answer, journal=journal, timeout_s=timeout_s, original=original)


def _files(files: Iterable[Staged]) -> list[pb.StagedFile]:
    return [
        pb.StagedFile(Task=file.task, Shard=file.shard, Messages=file.messages, Size=file.size, Checksum=file.crc32c)
        for file in files
    ]


def _next_offset(chunk: bytes) -> int:
    """The offset after the last message of a chunk, which ends with its size."""
    return int.from_bytes(chunk[-int.from_bytes(chunk[-4:], "big") :][:8], "big") + 1


def _decoded(chunk: bytes) -> Sequence[Message]:
    """The messages of a chunk, whose offsets are consecutive.

    Raises:
        DecodeError: these bytes are not whole messages.
    """
    batch = Batch(chunk)
    batch.look(MAX_OFFSET)
    return batch.known
