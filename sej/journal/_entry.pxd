"""An entry of a segment's index, for the compiled modules; :mod:`sej.journal.index` is the reference."""

from libc.errno cimport EINTR, errno
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t

from sej.codec._layout cimport HEAD, MAX_KEY, OVERHEAD, get32, get64, whole

cdef extern from *:
    """
    #if defined(_WIN32)
    #define sej_pread(fd, data, size, position) ((int64_t)-1)
    #else
    #include <stdint.h>
    #include <unistd.h>
    #define sej_pread(fd, data, size, position) ((int64_t)pread(fd, data, size, position))
    #endif
    """
    int64_t sej_pread(int fd, void *data, size_t size, int64_t position) nogil

cdef struct Entry:
    int64_t position
    int64_t end
    int64_t first_offset
    int64_t messages
    uint32_t crc32c
    int64_t first_timestamp
    int64_t last_timestamp
    int64_t newest_timestamp

cdef enum:
    ENTRY = 64
    TAIL = 1024
    HEADS = HEAD + MAX_KEY + 4  # the bytes of a message before its value, at most


cdef inline bint read_whole(int fd, unsigned char *data, int64_t size, int64_t position) noexcept nogil:
    """Fill the memory from a position of the file; return whether that was possible."""
    cdef int64_t done = 0, count
    while done < size:
        count = sej_pread(fd, data + done, size - done, position + done)
        if count < 0 and errno == EINTR:
            continue
        if count <= 0:
            return False
        done += count
    return True


cdef inline bint is_sound(const unsigned char *p, uint32_t crc) noexcept nogil:
    """Return whether the entry at p has this checksum of the bytes before it, and describes a block."""
    return crc == get32(p + ENTRY - 4) and get64(p) < get64(p + 8) and get32(p + 24) != 0


cdef inline bint load(Entry *entry, const unsigned char *p, uint32_t crc) noexcept nogil:
    """Load the entry at p; False if it is not sound, or has numbers that no segment has."""
    if not is_sound(p, crc) or <int64_t> get64(p + 8) < 0 or <int64_t> get64(p + 16) < 0:
        return False
    entry.position, entry.end, entry.first_offset = <int64_t> get64(p), <int64_t> get64(p + 8), <int64_t> get64(p + 16)
    entry.messages, entry.crc32c = get32(p + 24), get32(p + 28)
    entry.first_timestamp, entry.last_timestamp = <int64_t> get64(p + 32), <int64_t> get64(p + 40)
    entry.newest_timestamp = <int64_t> get64(p + 48)
    return entry.first_offset <= INT64_MAX - entry.messages


cdef inline bint names(const unsigned char *p, int64_t offset, int64_t timestamp) noexcept nogil:
    """Return whether a message at p has this offset and this time."""
    return get64(p) == <uint64_t> offset and <int64_t> get64(p + 8) == timestamp


cdef inline int64_t claimed(const unsigned char *p) noexcept nogil:
    """Return the size of the message of which HEADS bytes are at p, as its head has it; 0 if it is not well formed."""
    cdef int64_t key = <signed char> p[17], size
    if key < 0:
        return 0
    size = <int32_t> get32(p + HEAD + key)
    return OVERHEAD + key + size if size >= 0 else 0


cdef inline bint is_in_segment(int fd, const Entry *entry) noexcept nogil:
    """Return whether the segment has the first and the last message of an entry."""
    cdef unsigned char tail[TAIL]
    cdef unsigned char head[HEADS]
    cdef const unsigned char *last = tail
    cdef int64_t size, start, room
    if not 0 <= entry.position < entry.end or entry.end - entry.position < OVERHEAD:
        return False
    room = min(entry.end, <int64_t> TAIL)
    start = entry.end - room
    if not read_whole(fd, tail, room, start):
        return False
    size = <int32_t> get32(tail + room - 4)
    if not OVERHEAD <= size <= entry.end - entry.position:
        return False
    if size <= room:
        last = tail + (room - size)
        if whole(last, size) != size:
            return False
    else:  # a long message: its head leads to the end
        if not read_whole(fd, head, HEADS, entry.end - size) or claimed(head) != size:
            return False
        last = head
    if not names(last, entry.first_offset + entry.messages - 1, entry.last_timestamp):
        return False
    if entry.position >= start:
        return names(tail + (entry.position - start), entry.first_offset, entry.first_timestamp)
    return read_whole(fd, head, HEAD, entry.position) and names(head, entry.first_offset, entry.first_timestamp)
