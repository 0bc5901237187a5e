"""Commit a job: staged rows into journals, all of them or none, once.

The steps, under a lock that allows one commit at a time in a root:

1. Decided jobs whose driver died are finished, undecided ones are removed. Every staged file is compared with what
   its task reported, and every journal concerned is locked. A job that cannot read its rows, or cannot lock the
   journals, fails here, and leaves nothing.
2. The decision: ``job-<job>.json`` names the job's files. From here on its rows will be in the journals, even if its
   driver dies: the next job finishes it.
3. Each journal gets its rows by ``append_once``: a repeat after a crash appends nothing.
4. The number is recorded in ``done.json``; the decision and the files are removed.

If a job is run again under the same name with a recorded number, all of it is dropped: Spark replays a micro-batch
whose end it could not record.

A decided job whose rows were lost stops every later job with a :class:`~shard.staging.StagedRowsError`:
:func:`discard_dead_jobs` removes it, and reports which of its messages are in the journals.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Final, NamedTuple, Protocol, Self

from sej.errors import CorruptionError, InvalidNameError, SejError
from sej.journal.directory import Directory, check_name
from sej.journal.offset_check import kept_offsets
from sej.journal.retention import Retention, clean
from sej.journal.view import Journal
from sej.system.disk import OS
from sej.system.locks import Lock
from sej.system.sealed import SealedFile, whole
from sej.writing.exactly_once import Batches
from sej.writing.writer import Writer
from shard.staging import Rows, StagedRowsError, check_rows, decided, forget, renumbered, sweep

ANONYMOUS: Final = "spark-batch"
"""The name that counts batch jobs without a name."""
_MAX_NUMBER: Final = 2**63 - 1
"""The highest number that the files of this module may have."""
_JOB: Final = "job:"
_JOBS: Final = 256
"""How many jobs without a name are remembered."""
_THREADS: Final = 8
_JSON_BYTES: Final = 1 << 28
"""A decision names each file of each task."""
_log = logging.getLogger("pipeline")


class OverwriteError(SejError, ValueError):
    """An overwrite would remove messages that are still needed; nothing was written."""


class Target(Protocol):
    """The journals of a job: a SEJ directory, a sharded journal below a root, or a client's journals on a hub."""

    @property
    def root(self) -> str:
        """The directory that errors and commands name."""

    @property
    def staging(self) -> str:
        """The folder for staged rows; on the journals' own disk, and ignored by readers."""

    @property
    def lock_timeout(self) -> float:
        """Seconds to wait for another commit."""

    @property
    def open_max(self) -> int:
        """The most writers that a commit holds together; with more shards, each only while it is used."""

    def key(self, name: str) -> str:
        """Return the key under which a name's number is recorded in this staging folder."""

    def described(self) -> dict[str, Any]:
        """Return what a decision records, so that :meth:`again` returns this target."""

    def again(self, found: dict[str, Any]) -> Self:
        """Return the target of a decision; removes its members from ``found``. KeyError: one is missing."""

    def waits_for(self, job: str) -> bool:
        """Return whether a decided job that cannot be finished stops the jobs of this target."""

    def existing(self) -> list[int]:
        """Return the shards that exist."""

    def directory(self, shard: int) -> Directory:
        """Return a journal's directory, whether or not it exists."""

    def prepare(self) -> None:
        """Create what a reader recognises even if no message is ever written."""

    def open(self, shard: int) -> AbstractContextManager[Writer]:
        """Lock a journal's writer until the block ends; the journal is created if it is missing."""


class Job(NamedTuple):
    """A job to commit.

    Attributes:
        id: unique; part of its tasks' folder names.
        name: the name under which batches are counted: the stream, the application, or :data:`ANONYMOUS`.
        number: its number under that name; None: the next.
        rows: the staged files, in the order of the tasks.
        overwrite: remove the existing messages.
        discard: readers that may lose messages to an overwrite.
        expected: where each journal ended when the rows were computed from it; an overwrite removes nothing after that.
    """

    id: str
    name: str
    number: int | None
    rows: list[Rows]
    overwrite: bool = False
    discard: tuple[str, ...] = ()
    expected: dict[str, int] | None = None


def check_job_name(name: str, what: str) -> str:
    """Check a name under which a caller counts jobs.

    Raises:
        InvalidNameError: it has characters that are not allowed, or it counts the jobs without a name: their numbers
            are times, so that every job with a number of the caller would be dropped.
    """
    if check_name(name, what) == ANONYMOUS:
        raise InvalidNameError(
            f"{what} must not be {ANONYMOUS!r}, which counts jobs without a name: choose another one"
        )
    return name


def commit(target: Target, job: Job) -> bool:
    """Commit a job; return False if it was committed before.

    Raises:
        LockedError: another writer held a journal for longer than the target waits; run the job again.
        OverwriteError: an overwrite would remove messages that a reader needs, or that were appended in the meantime.
        StagedRowsError: the driver cannot read the rows of a task, or a dead job's; nothing of this job was written.
        ValueError: the number is out of range.
    """
    if job.number is not None and not 0 <= job.number <= _MAX_NUMBER:
        raise ValueError(f"the job's number must be 0 to {_MAX_NUMBER}, got {job.number}")
    with _locked(target):
        _finish_dead_jobs(target)
        recorded = _read_done(target)
        done = recorded.get(target.key(job.name))
        number = job.number
        if number is None:
            if f"{_JOB}{job.id}" in recorded:
                return False
            number = max(time.time_ns(), _last(target, job) + 1, -1 if done is None else done + 1)
            job = job._replace(number=number)
        if done is None:  # done.json was lost: a number below the last one in the journals was committed before it
            done = _last(target, job) - 1
        if number <= done:
            forget(target.staging, job.id)
            return False
        check_rows(job.rows)
        if job.overwrite:
            check_readers(target, job.discard)
        if not job.rows:
            target.prepare()
        with _writers(target, job) as writers:
            _check_expected(target, job)
            _decision(target, job.id).store({**target.described(), **job._asdict()})
            _apply(target, job, number, writers)
        return True


def wrote(target: Target, name: str) -> bool:
    """Return whether a job of this name has written to the target."""
    return target.key(name) in _read_done(target)


def last_number(target: Target, name: str) -> int | None:
    """Return the number of the last job of a name that is in the target; None: it has none. Finishes dead jobs first.

    Raises:
        StagedRowsError: the rows of a decided job were lost.
        CorruptionError: a decision cannot be read.
    """
    finish_dead_jobs(target)
    return _read_done(target).get(target.key(name))


def is_decided(target: Target, job: str) -> bool:
    """Return whether a job's rows will be in the journals, whatever happens to its driver."""
    return OS.status(_decision(target, job).path) is not None


def drop(target: Target, job: str) -> None:
    """Remove what the tasks of a job staged, unless it is decided; waits for a commit that is running.

    Raises:
        LockedError: a commit ran for longer than the target waits.
    """
    if OS.status(target.staging) is not None and any(
        name.startswith(f"task-{job}-") for name in OS.list(target.staging)
    ):
        with _locked(target):
            if not is_decided(target, job):
                forget(target.staging, job)


def finish_dead_jobs(target: Target) -> None:
    """Finish decided jobs whose driver died, and remove undecided ones.

    Raises:
        StagedRowsError: the rows of a decided job were lost.
        CorruptionError: a decision cannot be read.
    """
    if OS.status(target.staging) is not None:
        with _locked(target):
            _finish_dead_jobs(target)


class Discarded(NamedTuple):
    """A decided job that could not be finished and was removed.

    Attributes:
        job: its id.
        reason: why it could not be finished.
        appended: how many of its messages are in the journals.
        lost: how many are not.
    """

    job: str
    reason: str
    appended: int
    lost: int


def discard_dead_jobs(target: Target) -> list[Discarded]:
    """Remove decided jobs that cannot be finished, then finish the others.

    A removed job may be run again under the same name and number: a journal that has its messages keeps them, and
    another journal gets them. Its decision is renamed to ``discarded-<job>.json``.
    """
    found = []
    if OS.status(target.staging) is not None:
        with _locked(target):
            for name in decided(target.staging):
                reason = why_undeliverable(target, name)
                if reason is None:
                    continue
                there = lost = 0
                with suppress(CorruptionError):
                    its, job, number = _load(target, name)
                    for rows in job.rows:
                        batch = Batches(its.directory(rows.shard)).last(job.name)
                        written = batch is not None and batch >= number
                        there, lost = there + written * rows.messages, lost + (not written) * rows.messages
                OS.rename(_decision(target, name).path, os.path.join(target.staging, f"discarded-{name}.json"))
                OS.sync_dir(target.staging)
                forget(target.staging, name)
                found.append(Discarded(name, reason, there, lost))
            _finish_dead_jobs(target)
    return found


def why_undeliverable(target: Target, job: str) -> str | None:
    """Return why a decided job cannot be finished; None if it can."""
    try:
        check_rows(_load(target, job)[1].rows)
    except FileNotFoundError:
        return None  # it was finished a moment ago
    except (StagedRowsError, CorruptionError) as error:
        return str(error)
    return None


def check_readers(target: Target, discard: Iterable[str]) -> None:
    """Check that an overwrite removes no message that a reader with a kept offset needs.

    Raises:
        OverwriteError: a reader that is not named has not read everything.
    """
    for shard in target.existing():
        directory = target.directory(shard)
        end = Journal(directory.path).end_offset
        for name, offset in kept_offsets(directory).items():
            if name not in discard and (offset or 0) < end:
                raise OverwriteError(
                    f"{directory.path}: reader {name!r} has read {offset or 0} of {end} messages, and an overwrite"
                    f" would remove the rest; let it finish, or set discardReaders={name}"
                )


def _check_expected(target: Target, job: Job) -> None:
    if not job.overwrite or job.expected is None:
        return
    for shard in target.existing():
        directory = target.directory(shard)
        end, due = Journal(directory.path).end_offset, _due(job, directory.path)
        if end != due:
            raise OverwriteError(
                f"{directory.path} ends at offset {end}, expected {due}: messages were appended during this job, and"
                " overwriting would remove them; stop their writer, and run the job again"
            )


def _due(job: Job, path: str) -> int:
    """Return where a journal is expected to end; 0 if it is not named, because it did not exist."""
    return (job.expected or {}).get(os.path.basename(path), 0)


def _file(target: Target, name: str, what: str, way_out: str) -> SealedFile:
    path, temporary = os.path.join(target.staging, name), os.path.join(target.staging, "new")
    return SealedFile(OS, path, what, way_out, temporary=temporary, max_bytes=_JSON_BYTES)


def _decision(target: Target, job: str) -> SealedFile:
    way_out = f"run `sej spark finish --discard {target.root}`, and run its job again"
    return _file(target, f"job-{job}.json", "a readable decision", way_out)


def _done(target: Target) -> SealedFile:
    way_out = "move it away to continue without it"
    return _file(target, "done.json", "a readable record of the numbers of jobs", way_out)


def _locked(target: Target) -> Lock:
    OS.mkdir(target.staging, parents=True)
    lock = Lock(os.path.join(target.staging, "commit.lck"), what="the commit of another job")
    return lock.acquire(timeout=target.lock_timeout)


def _finish_dead_jobs(target: Target) -> None:
    """A process that holds the lock and finds a decision knows that its driver died."""
    names = decided(target.staging)
    if names:
        OS.sync_dir(target.staging)  # the driver may have renamed the decision and failed before this
    for name in names:
        try:
            _finish(target, name)
        except (SejError, OSError) as error:
            if target.waits_for(name):
                raise
            _log.error("a job is not finished: %s: %s", name, error)
    sweep(target.staging, keep=decided(target.staging))


def _finish(target: Target, name: str) -> None:
    its, job, number = _load(target, name)
    try:
        check_rows(job.rows)
    except StagedRowsError as error:
        raise StagedRowsError(
            f"job {name} of {job.name!r} is decided but cannot be finished: {error.reason}. Remove it with `sej spark"
            f" finish --discard {target.root}`, then run the job again",
            path=error.path,
        ) from error
    with _writers(its, job) as writers:
        _apply(its, job, number, writers)


def _load(target: Target, name: str) -> tuple[Target, Job, int]:
    """Return a decided job, its own target and its number.

    A root may hold several sharded journals: the target is the job's own, not that of the job that finishes it.

    Raises:
        CorruptionError: the decision cannot be read.
    """
    decision = _decision(target, name)
    found = decision.load()
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "another process has finished this job", decision.path)
    with decision.checking():
        its = target.again(found)
        rows = [
            Rows(whole(shard), _staged(its, str(file)), whole(count), *rest)
            for shard, file, count, *rest in found.pop("rows")
        ]
        job = Job(**{**found, "rows": rows, "discard": tuple(found["discard"])})
        number = whole(job.number)
        if job.id != name:
            raise ValueError(f"it belongs to job {job.id!r}")
    return its, job, number


def _staged(target: Target, path: str) -> str:
    """Return the path of staged rows in the target's own folder, which may have been moved since the decision."""
    folder, name = os.path.split(path)
    return os.path.join(target.staging, os.path.basename(folder), name)


@contextmanager
def _writers(target: Target, job: Job) -> Iterator[Callable[[int], AbstractContextManager[Writer]]]:
    """Open and lock the writers of the journals concerned.

    If there are very many, each that exists is opened once, to find errors before the decision, and again while it is
    used.
    """
    shards = {rows.shard for rows in job.rows} | set(target.existing() if job.overwrite else ())
    with ExitStack() as stack:
        if len(shards) > target.open_max:
            for shard in sorted(shards.intersection(target.existing())):
                with target.open(shard):
                    pass
            yield target.open
        else:
            opened = {shard: stack.enter_context(target.open(shard)) for shard in sorted(shards)}
            yield lambda shard: nullcontext(opened[shard])


def _apply(target: Target, job: Job, number: int, writers: Callable[[int], AbstractContextManager[Writer]]) -> None:
    """Run steps 3 and 4."""
    by_shard: dict[int, list[Rows]] = {shard: [] for shard in (target.existing() if job.overwrite else ())}
    for rows in job.rows:
        by_shard.setdefault(rows.shard, []).append(rows)

    def append(shard: int) -> None:
        with writers(shard) as writer:
            _append(target, job, number, shard, by_shard[shard], writer)

    if len(by_shard) > 1:
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(append, sorted(by_shard)))
    else:
        for shard in by_shard:
            append(shard)
    done = {**_read_done(target), target.key(job.name): number}
    if job.name == ANONYMOUS:  # so that a commit that is repeated after a lost answer is recognised
        done[f"{_JOB}{job.id}"] = number
        for old in sorted((name for name in done if name.startswith(_JOB)), key=done.__getitem__)[:-_JOBS]:
            del done[old]
    _done(target).store(done)
    _decision(target, job.id).remove()
    forget(target.staging, job.id)


def _append(target: Target, job: Job, number: int, shard: int, files: list[Rows], writer: Writer) -> None:
    if job.overwrite and writer.end.last_batch(job.name) != number:
        writer.end.rotate()
    span = writer.end.append_once_encoded(job.name, number, renumbered(files, writer.offset))
    directory = target.directory(shard)
    if job.overwrite and job.expected is not None and span.start > _due(job, directory.path):
        _log.warning("%s: messages were appended after those that this job read: nothing is removed", directory.path)
    elif job.overwrite:
        keep = sum(segment.first_offset >= span.start for segment in directory.segments())
        readers = kept_offsets(directory)
        ignored = [name for name in job.discard if name in readers]
        clean(directory, Retention(max_bytes=0, keep_segments=max(keep, 1)), ignore_readers=ignored)


def _last(target: Target, job: Job) -> int:
    """Return the highest number that a journal of the target has from a name."""
    found = (Batches(target.directory(shard)).last(job.name) for shard in target.existing())
    return max((number for number in found if number is not None), default=-1)


def _read_done(target: Target) -> dict[str, int]:
    file = _done(target)
    with file.checking():
        return {name: whole(number) for name, number in (file.load() or {}).items()}
