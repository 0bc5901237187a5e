"""Jobs over journals; each is a function here and a command of ``sej spark``.

Each reports through ``progress``, and continues where it stopped when it is run again.
"""

from __future__ import annotations

from pipeline.jobs.archiving import archive, restore
from pipeline.jobs.rewriting import compact, dedupe, reshard
from pipeline.jobs.statistics import DirectoryStats, stats

__all__ = [
    "DirectoryStats",
    "archive",
    "compact",
    "dedupe",
    "reshard",
    "restore",
    "stats",
]
