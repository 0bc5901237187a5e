"""The names of a sharded journal: constants, and nothing else.

Source: the SEJ document, "Sharding" and "Hub"::

    [prefix].[shard-bit].[shard-index]     orders.3.005
             [shard-bit].[shard-index]     3.005            no prefix
    [prefix]                               orders           bit 0: one shard, named by its prefix
    [client-id].[any of the above]         berlin.orders.3.005, in a hub's root

The low bits of a hash of the key are the index. ``xxh64`` is XXH64 with seed 42, which is what Spark's ``xxhash64``
computes. ``fnv`` is what the original's example uses: FNV-1a in 32 bits, folded to 16. Both never change.
"""

from __future__ import annotations

import re
from typing import Final, Literal

MAX_BITS: Final = 10
INDEX_DIGITS: Final = 3

Hash = Literal["xxh64", "fnv"]
"""The hash that routes the keys of a sharded journal, by its name."""
HASH_SEED: Final = 42
FNV_BASIS: Final = 0x811C9DC5
FNV_PRIME: Final = 0x01000193

PREFIX: Final = re.compile(r"[A-Za-z0-9_\-]*")
SHARD: Final = re.compile(r"(?:([A-Za-z0-9_\-]+)\.)?([1-9a])\.([0-9a-f]{3})")
"""prefix or nothing, bit, index; a name with bit 0 is a prefix and nothing else."""

CLIENT: Final = re.compile(r"[0-9A-Za-z_\-]+(?:~[0-9A-Za-z_\-]+)*")
"""A client in a hub's directory name; a dot of the client's id is ``~`` there."""
JOURNAL_DIR: Final = re.compile(r"(?!.*\.\.)[0-9A-Za-z_.\-]+")

HUB_MARKER: Final = ".hub"
"""A hub's root has this file: names alone cannot distinguish it from a sharded journal."""
WORKERS_DIR: Final = ".workers"
RESHARD_DIR: Final = ".reshard"
RECORDS_DIR: Final = ".shards"
"""The record of a sharded journal, one file: the shards that were ever created.

An unused shard does not exist, and is not missing.
"""

assert 1 << MAX_BITS <= 16**INDEX_DIGITS and MAX_BITS < 16
