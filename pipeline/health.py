"""Files of dead Spark jobs below a root: ``sej doctor`` reports them, and removes those that no job needs.

The command finds :func:`look` through the entry-point group ``sej.doctor``. It needs no Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Literal

from sej.errors import LockedError
from sej.system.locks import Lock

__all__ = ["look"]

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


def _look(root: str, staging: str) -> Iterator[_Finding]:
    from pipeline.writing.committing import why_undeliverable
    from pipeline.writing.staging import decided, sweep
    from pipeline.writing.target import Target

    try:
        with Lock(os.path.join(staging, "commit.lck"), what="the commit of a job").acquire():
            jobs = decided(staging)
            target = Target(root, None, None if staging.endswith(os.path.join("tmp", "staging")) else 1)
            reasons = {job: reason for job in sorted(jobs) if (reason := why_undeliverable(target, job)) is not None}
            for job, reason in reasons.items():
                found = f"job {job} is decided but cannot be finished: {reason}"
                yield _WHAT, "problem", found, f"run sej spark finish --discard {root}, and then run its job again"
            waiting = sorted(set(jobs) - set(reasons))
            if waiting:
                found = f"committed to {root} but not finished: {', '.join(waiting)}"
                yield _WHAT, "note", found, f"the next job on {root} finishes it, or run sej spark finish {root}"
            removed = sweep(staging, keep=jobs)
            if removed:
                yield _WHAT, "ok", f"removed {removed} folder(s) of dead jobs from {staging}", ""
    except LockedError:
        yield _WHAT, "ok", f"a job is committing to {root}", ""
