"""The files of a benchmark: a folder that is removed afterwards, and rows that do not compress."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import shard

__all__ = ["fill", "folder", "fresh"]

_BATCH = 100_000


@contextmanager
def folder() -> Iterator[Path]:
    """Create a folder for a section, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="sej-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def fresh(root: Path) -> Path:
    """Create a new, empty folder below another one."""
    return Path(tempfile.mkdtemp(dir=root))


def fill(root: Path, rows: int) -> None:
    """Append rows of 100 bytes with 200,000 different keys of 13 bytes to eight shards."""
    rng = random.Random(1)
    with shard.Writer(shard.Path(root, "bench", 3)) as writer:
        for _ in range(0, rows, _BATCH):
            blob = rng.randbytes(100 * _BATCH)
            values = [blob[at : at + 100] for at in range(0, len(blob), 100)]
            writer.append_many(values, [b"key%010d" % rng.randrange(200_000) for _ in range(_BATCH)])
