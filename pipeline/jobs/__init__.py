"""Jobs over journals; each is a function here and a command of ``sej spark``.

Each reports through ``progress``, and continues where it stopped when it is run again.
"""

from __future__ import annotations

from pipeline.jobs.archiving import archive, restore
from pipeline.jobs.importing import import_kestrel, import_kestrel_directory
from pipeline.jobs.rewriting import compact, dedupe, reshard
from pipeline.jobs.statistics import DirectoryStats, stats

__all__ = [
    "DirectoryStats",
    "archive",
    "compact",
    "dedupe",
    "import_kestrel",
    "import_kestrel_directory",
    "reshard",
    "restore",
    "stats",
]
