"""Jobs that append to a client's journals through a hub, with offsets that the hub assigns: the client's side.

Every call may be sent again after any failure: see :mod:`hub.jobs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from hub.errors import NotSupportedError
from hub.jobs import Staged
from hub.wire import hub_pb2 as pb
from hub.wire.client import Client
from hub.wire.frames import stage_request

_TIMEOUT_S: Final = 600.0
"""A commit appends all rows of a job before it answers."""
_ABORT_S: Final = 5.0
"""An abort only removes files, and is not worth a long wait."""


class JobCalls:
    """The calls of jobs over a client's connection.

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
        size: int = self._call("Stage", stage_request(request, data), pb.StageResponse).Size
        return size

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
        written: bool = self._call("Commit", request, pb.CommitResponse).Written
        return written

    def abort(self, job: str) -> None:
        """Remove what the tasks of a job staged, unless it is committed."""
        request = pb.AbortRequest(ClientID=self._client.client_id, Job=job)
        self._call("Abort", request, pb.AbortResponse, _ABORT_S)

    def _call(self, name: str, request: Any, answer: Any, timeout_s: float = _TIMEOUT_S) -> Any:
        try:
            return self._client.call(name, request, answer, timeout_s=timeout_s)
        except NotSupportedError as error:
            raise NotSupportedError(
                f"the hub at {self._client.address} takes no jobs: it is an original hub; write"
                " on a disk that the driver and all executors share"
            ) from error


def _files(files: Iterable[Staged]) -> list[pb.StagedFile]:
    return [
        pb.StagedFile(Task=file.task, Shard=file.shard, Messages=file.messages, Size=file.size, Checksum=file.crc32c)
        for file in files
    ]
