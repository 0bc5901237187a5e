"""Count messages from the index, without reading a value.

Spark 4.3 pushes no aggregate into a Python source: ``df.count()`` transfers every row. This function only needs each
journal's first and end offset.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import get_args

from pipeline.reading.discovery import Layout, discover
from pipeline.reading.extents import Extent
from sej.checks import ITERABLE, PATH, TEXT, one_of, optional, require

__all__ = ["count"]


def count(
    root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    layout: Layout | None = None,
    pattern: str | None = None,
) -> int:
    """Return the number of messages below a root, like ``spark.read.format("sej").load(root).count()``.

    Args:
        root: a SEJ directory, a sharded journal, a hub's root, or several of them.
        layout: ``"directory"``, ``"shards"`` or ``"hub"``, if names cannot tell.
        pattern: only directories whose name matches.

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: there is no journal in it.
        CorruptionError: good messages follow damage at a journal's end.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"])
        >>> count(path)
        3
    """
    require(layout=(layout, optional(one_of(get_args(Layout)))), pattern=(pattern, optional(TEXT)))
    if not isinstance(root, str | os.PathLike):
        ITERABLE("root", root)
    roots = [root] if isinstance(root, str | os.PathLike) else list(root)
    for each in roots:
        PATH("root", each)
    origins = discover([os.fspath(path) for path in roots], layout=layout, pattern=pattern)
    return sum(Extent(origin).messages for origin in origins)
