"""The name under which a stream's batches are counted: the query that its checkpoint belongs to.

The name of the checkpoint's folder is not enough: two programs may each have a ``checkpoint`` in their own directory,
one folder can be spelled in several ways, and if a user removes it to start from scratch, Spark counts from 0 again.
Batches of one query would be dropped as those of another. Spark stores the identity of the query in the folder.
"""

from __future__ import annotations

import hashlib
import json
import os

from pipeline.paths import is_address, local_path


def by_checkpoint(location: str) -> str:
    """Return the name for a stream with this checkpoint.

    If the folder is not on a local disk, the name is derived from its address.
    """
    if is_address(location) and not location.lower().startswith("file:"):
        return _hashed(location)
    path = os.path.abspath(local_path(location))
    try:
        with open(os.path.join(path, "metadata"), encoding="utf-8") as file:
            return _hashed(json.load(file)["id"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return _hashed(path)


def _hashed(whose: str) -> str:
    return f"spark-{hashlib.sha256(whose.rstrip('/').encode()).hexdigest()[:20]}"
