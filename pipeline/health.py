"""Files of dead Spark jobs below a root: ``sej doctor`` reports them, and removes those that no job needs.

The command finds :func:`look` through the entry-point group ``sej.doctor``. It needs no Spark.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from sej.errors import LockedError
from sej.system.locks import Lock

if TYPE_CHECKING:
    from shard.committing import Target

_Finding = tuple[str, Literal["ok", "note", "problem"], str, str]
_WHAT: Final = "spark jobs"


def look(given: str | os.PathLike[str]) -> Iterator[_Finding]:
    """Yield findings about the jobs that write to a journal or sharded journal: (what, level, found, what to do).

    Args:
        given: a SEJ directory, a shard, or the root of a sharded journal.
    """
    path = os.path.abspath(given)
    parent = os.path.dirname(path)
    roots = {
        path: (os.path.join(path, "tmp", "staging"), os.path.join(path, ".staging")),
        parent: (os.path.join(parent, ".staging"),),
    }
    for root, stagings in roots.items():
        for staging in stagings:
            if os.path.isdir(staging):
                yield from _look(root, staging)


@contextmanager
def target_of(root: str | os.PathLike[str]) -> Iterator[Target]:
    """Yield the target with which the jobs below a root are finished: a journal, a sharded journal or a stopped hub."""
    from hub.jobs import target_of as jobs_of
    from hub.naming import is_root
    from hub.store import Store
    from pipeline.writing.places import Target

    path = os.path.abspath(root)
    if is_root(path):
        with Store(path) as store:
            yield jobs_of(store)
    else:
        yield Target(path, None, None if os.path.isdir(os.path.join(path, "jnl")) else 1)


def _look(root: str, staging: str) -> Iterator[_Finding]:
    from shard.committing import why_undeliverable
    from shard.staging import decided, sweep

    try:
        with Lock(os.path.join(staging, "commit.lck"), what="the commit of a job").acquire():
            jobs = decided(staging)
            with target_of(root) as target:
                found_reasons = {job: why_undeliverable(target, job) for job in sorted(jobs)}
            reasons = {job: reason for job, reason in found_reasons.items() if reason is not None}
            for job, reason in reasons.items():
                found = f"job {job} is decided but cannot be finished: {reason}"
                yield (
                    _WHAT,
                    "problem",
                    found,
                    f"`sej spark finish --discard {shlex.quote(root)}`, and then run its job again",
                )
            waiting = sorted(set(jobs) - set(reasons))
            if waiting:
                found = f"committed to {root} but not finished: {', '.join(waiting)}"
                yield _WHAT, "note", found, f"the next job there finishes it, or `sej spark finish {shlex.quote(root)}`"
            removed = sweep(staging, keep=jobs)
            if removed:
                yield _WHAT, "ok", f"removed {removed} folder(s) of dead jobs from {staging}", ""
    except LockedError:
        yield _WHAT, "ok", f"a job is committing to {root}", ""
