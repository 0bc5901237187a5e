"""Shards: a journal split by key into several SEJ directories, with a writer, a scanner and workers for all of them.

Public names are imported at their first use, so that importing ``shard`` is fast. The files of a sharded journal:
docs/formats/shard.md. The modules, in the order in which they are best read::

    routing                                the shard of a key
    names                                  names of shards; what a root has, and new shards in it
    records                                what is stored about a sharded journal
    writer                                 a writer for all shards; the errors of many shards
    scanner                                all shards as one iterator; how far readers are behind
    worker                                 worker groups
    resharding                             change the number of shards
    checking                               problems of a root
    committing, staging                    rows into many journals, all or none: staged and committed once
    cli                                    sej shard
"""

from __future__ import annotations

from sej.imports import TYPE_CHECKING
from sej.imports import lazily as _lazily

if TYPE_CHECKING:
    from shard.checking import Problem as Problem
    from shard.checking import check as check
    from shard.names import Found as Found
    from shard.names import Path as Path
    from shard.names import Tree as Tree
    from shard.names import TreeWatch as TreeWatch
    from shard.names import find as find
    from shard.names import watch as watch
    from shard.resharding import Resharded as Resharded
    from shard.resharding import reshard as reshard
    from shard.routing import RouteError as RouteError
    from shard.routing import index_of as index_of
    from shard.scanner import Lag as Lag
    from shard.scanner import Scanner as Scanner
    from shard.scanner import lag as lag
    from shard.worker import Worker as Worker
    from shard.writer import ShardsBrokenError as ShardsBrokenError
    from shard.writer import ShardsFailedError as ShardsFailedError
    from shard.writer import ShardsLockedError as ShardsLockedError
    from shard.writer import Writer as Writer
else:
    __getattr__, __dir__, __all__ = _lazily(
        __name__,
        {
            "shard.checking": ("Problem", "check"),
            "shard.names": ("Found", "Path", "Tree", "TreeWatch", "find", "watch"),
            "shard.resharding": ("Resharded", "reshard"),
            "shard.routing": ("RouteError", "index_of"),
            "shard.scanner": ("Lag", "Scanner", "lag"),
            "shard.worker": ("Worker",),
            "shard.writer": ("ShardsBrokenError", "ShardsFailedError", "ShardsLockedError", "Writer"),
        },
    )
