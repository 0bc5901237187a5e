"""Count messages from the index, without reading a value.

Spark 4.3 pushes no aggregate into a Python source: ``df.count()`` transfers every row. This function only needs each
journal's first and end offset. A hub reports them in one call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from pipeline.connection import Remote
from pipeline.options import OptionError
from pipeline.reading.discovery import Layout
from pipeline.reading.extents import Extent
from pipeline.reading.planning import extents_of
from pipeline.reading.remote import RemoteExtent, read
from sej.checks import ITERABLE, PATH, TEXT, one_of, optional, require

if TYPE_CHECKING:
    from hub.wire import ClientTLS


def count(
    root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    layout: Layout | None = None,
    pattern: str | None = None,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
) -> int:
    """Return the number of messages below a root, like ``spark.read.format("sej").load(root).count()``.

    It counts offsets, without those of recorded gaps. Messages that are lost, but in no recorded gap yet, are counted
    until :meth:`sej.Journal.repair` has run. A scanner and ``sej count`` read the journal, and raise an error there.

    Args:
        root: a SEJ directory, a sharded journal, a hub's root, or several of them. With ``hub``: clients, sharded
            journals or journals there; None: everything readable.
        layout: ``"directory"``, ``"shards"`` or ``"hub"``, if names cannot tell.
        pattern: only directories whose name matches.
        hub: the address ``host:port`` of a hub, or several of the same hub.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.

    Raises:
        OptionError: layout is set, and so is hub.
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
    remote = Remote.named(hub, token, tls)
    if remote is not None and layout is not None:
        raise OptionError("layout applies to a path; leave it out with hub")
    if not isinstance(root, str | os.PathLike) and (root is not None or remote is None):
        ITERABLE("root", root)
    given = [] if root is None else [root] if isinstance(root, str | os.PathLike) else list(root)
    for each in given:
        PATH("root", each)
    roots = [os.fspath(path) for path in given]
    return sum(_count(extent, remote) for extent in extents_of(roots, remote, layout=layout, pattern=pattern))


def _count(extent: Extent | RemoteExtent, remote: Remote | None) -> int:
    count = extent.count(extent.first, extent.end)
    if count is None:  # damaged
        assert remote is not None
        count = sum(rows.found.messages for rows in read(remote, extent.slice(extent.first, extent.end), ()))
    return count
