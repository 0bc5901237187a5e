"""Opening a clean journal by one compiled call.

A journal is clean if its last writer closed it, and nothing else waits in it for the next one. Then opening has nothing
to decide. It only looks, at the same things and in the same order as :mod:`sej.writing.taking`:

====================  ============================================  =================================================
what                  is ordinary if                                else, for example
====================  ============================================  =================================================
``jnl.lck``           it is free, signed, without an original's      another writer; a file that is missing or empty
                      trace, and keeps its name
``id``                its checksum is right                         the first writer of an original's journal
``txn/``              it is missing, or has only batches            an unfinished merge or repair
``jnl/``              it has a segment                              a new journal
``tmp/``              no staged file is in it                       a writer that died while it staged rows
the last segment      it is free                                    another writer whose lock file was removed
``idx/``              the last entry describes the segment's end    a writer that died; a torn tail; a stale index
``idx/durable``       it has the segment's end                      a writer that died; a copy of a journal
====================  ============================================  =================================================

At the first line that is not ordinary the compiled function releases everything and returns None. Nothing was changed,
except that the lock file is signed. The reference, which all other disks use, then starts from the beginning, so it
alone decides about what is rare, and alone raises errors.

**Closing.** A writer leaves the journal clean by two records, after its last sync: the durable position, and then the
last entry of the index. :meth:`sej.writing.last_segment.LastSegment.record` writes both by one compiled call, if the
index still has the size that the opening found. Otherwise the reference writes both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from sej.imports import compiled
from sej.journal.directory import Directory
from sej.journal.index import IndexFile
from sej.journal.index_format import BLOCK_BYTES
from sej.system.disk import OS, OsFile
from sej.system.durable import KeptPosition
from sej.system.locks import Lock
from sej.writing.end import End

__all__ = ["FEW_SEGMENTS", "take_clean_end"]

FEW_SEGMENTS: Final = 2
"""A journal with more of them may have a merge that was not finished: a joined segment, its part and a successor."""

_take: Callable[[str, OsFile, type[OsFile]], Any] | None = None
if not TYPE_CHECKING and (_twin := compiled("sej.writing._clean_c")):
    _take = _twin.take


def take_clean_end(directory: Directory, kept: KeptPosition, lock: Lock) -> End | None:
    """Take the lock and open the end, as :func:`sej.writing.taking.take_end`; None if the journal is not clean.

    If this raises, the lock may be held, and the caller releases it.
    """
    if _take is None or directory.disk is not OS:
        return None
    found = None
    try:
        found = _take(directory.prefix, lock.offer(), OsFile)
        if found is not None:
            segment, file, size, entries, last, offset, lock_identity, signature, inode, head, count, batches = found
            lock.accept(lock_identity, signature)
            if count > FEW_SEGMENTS:  # it never removes the last segment
                from sej.journal.retention import finish_merge

                finish_merge(directory)
            kept.know(file, inode, head, size)
            index_file = IndexFile(directory, segment)
            index_file.know(entries)
            short, newest = size - last.position < BLOCK_BYTES, last.newest_timestamp
            known, partial = (entries - 1, last) if short else (entries, None)
            durable = size, offset
            return End(segment, file, *durable, *durable, newest, index_file, known, [], partial, short, None, batches)
    except BaseException:
        if found is not None:
            found[1].unlock()  # a child that was just forked may have a copy of the descriptor
            found[1].close()  # its lock must not live as long as the traceback
        raise
    lock.release()
    return None
