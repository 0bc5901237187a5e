# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Entries of a segment's index, decoded, and compared with the messages that they describe."""

from cython cimport boundscheck

from libc.stdint cimport INT64_MAX, int64_t

from sej.codec._layout cimport get32, get64
from sej.journal._entry cimport ENTRY, Entry, is_in_segment, is_sound
from sej.system._checksum_c cimport fast_crc32c, is_fast

from sej.journal.index_format import ENTRY_SIZE

assert ENTRY == ENTRY_SIZE


def unpack(data, make):
    """Return the entries of an index as :meth:`sej.journal.index.Block.unpack` decodes them; if :func:`can_read`."""
    cdef const unsigned char[::1] view = data
    cdef const unsigned char *p
    cdef int64_t at
    cdef list found = []
    for at in range(0, view.shape[0] - ENTRY + 1, ENTRY):
        p = &view[at]
        if is_sound(p, fast_crc32c(p, ENTRY - 4, 0)):
            found.append(make((
                get64(p), get64(p + 8), get64(p + 16), get32(p + 24), get32(p + 28),
                <int64_t> get64(p + 32), <int64_t> get64(p + 40), <int64_t> get64(p + 48),
            )))
        else:
            found.append(None)
    return found


@boundscheck(True)
def is_block(int fd, block):
    """Return whether a block is what :func:`sej.journal.index.check_block` accepts."""
    cdef tuple fields = tuple(block)  # the items of a subclass take longer
    cdef Entry entry
    cdef bint found
    try:
        entry.position, entry.end, entry.first_offset, entry.messages = fields[0], fields[1], fields[2], fields[3]
        entry.first_timestamp, entry.last_timestamp = fields[5], fields[6]
        if entry.first_offset < 0 or not 0 < entry.messages <= INT64_MAX - entry.first_offset:
            return False
    except OverflowError:  # no entry of a real segment
        return False
    with nogil:
        found = is_in_segment(fd, &entry)
    return found


def can_read():
    """Return whether this processor computes checksums without the interpreter's lock."""
    return bool(is_fast())
