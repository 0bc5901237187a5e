"""The calls of jobs on the server: each translates bytes to calls of :class:`hub.jobs.Jobs` and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import grpc

from hub.jobs import Jobs, Staged
from hub.wire import hub_pb2 as pb
from hub.wire.frames import open_stage_request, parse


class JobService:
    """Answers the calls of jobs."""

    def __init__(
        self,
        jobs: Jobs,
        answering: Callable[[grpc.ServicerContext], AbstractContextManager[None]],
        allow: Callable[[grpc.ServicerContext, str], None],
    ) -> None:
        """Set what does the work.

        Args:
            jobs: the jobs of the store.
            answering: turns an error in its block into the call's status.
            allow: raises if the caller may not append as this client.
        """
        self._jobs = jobs
        self._answering = answering
        self._allow = allow

    def stage(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer Stage."""
        answer = pb.StageResponse()
        with self._answering(context):
            request, rows = open_stage_request(data)
            self._allow(context, request.ClientID)
            answer.Size = self._jobs.stage(
                request.ClientID, request.Job, request.Task, request.Shard, request.Position, rows
            )
        return answer.SerializeToString()

    def seal(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer Seal."""
        with self._answering(context):
            request = parse(pb.SealRequest, data)
            self._allow(context, request.ClientID)
            self._jobs.seal(request.ClientID, request.Job, _files(request.Files))
        return pb.SealResponse().SerializeToString()

    def commit(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer Commit."""
        answer = pb.CommitResponse()
        with self._answering(context):
            request = parse(pb.CommitRequest, data)
            self._allow(context, request.ClientID)
            answer.Written = self._jobs.commit(
                request.ClientID,
                request.Job,
                request.Prefix,
                request.Bits,
                request.Name or None,
                request.Number,
                _files(request.Files),
            )
        return answer.SerializeToString()

    def abort(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer Abort."""
        with self._answering(context):
            request = parse(pb.AbortRequest, data)
            self._allow(context, request.ClientID)
            self._jobs.abort(request.ClientID, request.Job)
        return pb.AbortResponse().SerializeToString()


def _files(files: Iterable[pb.StagedFile]) -> list[Staged]:
    return [Staged(file.Task, file.Shard, file.Messages, file.Size, file.Checksum) for file in files]
