"""Who counts a stream's batches: the query that its checkpoint is of.

The name of the checkpoint's folder says too little: two programs may each have their own ``checkpoint`` in their own
directory, one folder is spelled in several ways, and where somebody removes it to begin anew Spark counts from 0 again.
Batches of one would be dropped as those of another. Spark keeps the identity of the query in the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re

from pipeline.paths import local_path

__all__ = ["by_checkpoint"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def by_checkpoint(location: str) -> str:
    """The name for a stream with this checkpoint; where the folder is on no disk of ours, it is made of its address."""
    path = local_path(location)
    if _SCHEME.match(path):
        return _hashed(path)
    path = os.path.abspath(path)
    try:
        with open(os.path.join(path, "metadata"), encoding="utf-8") as file:
            return _hashed(json.load(file)["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return _hashed(path)


def _hashed(whose: str) -> str:
    return f"spark-{hashlib.sha256(whose.rstrip('/').encode()).hexdigest()[:20]}"
