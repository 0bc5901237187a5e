"""Shards: a journal split by key into several SEJ directories, with a writer, a scanner and workers for all of them.

Public names are imported at their first use, so that importing ``shard`` is fast. The files of a sharded journal:
docs/formats/shard.md. The modules, in the order in which they are best read::

    routing                                the shard of a key
    names, trees                           names of shards; what a root has, and new shards in it
    records                                what is stored about a sharded journal
    writer                                 a writer for all shards; the errors of many shards
    scanner, sources                       all shards as one iterator; how far readers are behind
    worker, claims                         worker groups
    resharding                             change the number of shards
    checking                               problems of a root
    committing, staging                    rows into many journals, all or none: staged and committed once
    cli                                    sej shard
"""

from __future__ import annotations

from sej.imports import TYPE_CHECKING
from sej.imports import lazily as _lazily

if TYPE_CHECKING:
    from shard.checking import Problem, check
    from shard.names import Path
    from shard.resharding import Resharded, reshard
    from shard.routing import RouteError, index_of
    from shard.scanner import Scanner
    from shard.sources import Lag, lag
    from shard.trees import Found, Tree, TreeWatch, find, watch
    from shard.worker import Worker
    from shard.writer import ShardsBrokenError, ShardsFailedError, ShardsLockedError, Writer
else:
    __getattr__, __dir__ = _lazily(
        __name__,
        {
            "shard.checking": ("Problem", "check"),
            "shard.names": ("Path",),
            "shard.resharding": ("Resharded", "reshard"),
            "shard.routing": ("RouteError", "index_of"),
            "shard.scanner": ("Scanner",),
            "shard.sources": ("Lag", "lag"),
            "shard.trees": ("Found", "Tree", "TreeWatch", "find", "watch"),
            "shard.worker": ("Worker",),
            "shard.writer": ("ShardsBrokenError", "ShardsFailedError", "ShardsLockedError", "Writer"),
        },
    )

__all__ = [
    "Found",
    "Lag",
    "Path",
    "Problem",
    "Resharded",
    "RouteError",
    "Scanner",
    "ShardsBrokenError",
    "ShardsFailedError",
    "ShardsLockedError",
    "Tree",
    "TreeWatch",
    "Worker",
    "Writer",
    "check",
    "find",
    "index_of",
    "lag",
    "reshard",
    "watch",
]
