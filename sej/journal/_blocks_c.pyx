# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Blocks read, checked and decoded by one call without the interpreter's lock.

Each block is read into memory that the processor's cache holds, compared with its checksum and decoded from these
bytes. A block that is not as its entry describes ends the call before it: the caller reads it again by the ordinary
way, which knows stale entries, damage and its errors. So everything here accepts less than that way or the same.
"""

from cython cimport boundscheck

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove, memset

from sej.codec._layout cimport HEAD, OVERHEAD, get32, get64, whole
from sej.journal._entry cimport ENTRY, Entry, is_in_segment, is_sound, read_whole
from sej.system._checksum_c cimport fast_crc32c, is_fast

from sej.codec.reference import Columns, Views
from sej.journal.index_format import ENTRY_SIZE

assert ENTRY == ENTRY_SIZE

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__linux__)
    #include <sys/mman.h>
    #ifndef MADV_POPULATE_WRITE
    #define MADV_POPULATE_WRITE 23
    #endif
    #endif
    /* Return size. Where messages have one size, the processor goes to the next one before it knows the size of this
       one: it foresees the branch, and the compiler does not see that both ways are the same. */
    static inline int64_t sej_step(int64_t size, int64_t guess) {
    #if defined(__GNUC__)
        if (__builtin_expect(size == guess, 1)) {
            __asm__("" : "+r"(guess));
            return guess;
        }
    #endif
        return size;
    }
    /* Get the pages of memory that is about to be written: one call costs less than a fault for each page. It may fail,
       as before Linux 5.14: then the pages are got by faults. */
    static void sej_populate(unsigned char *data, int64_t size) {
    #if defined(__linux__)
        const uintptr_t page = 4096, first = (uintptr_t)data & -page;
        madvise((void *)first, (((uintptr_t)data + size + page - 1) & -page) - first, MADV_POPULATE_WRITE);
    #endif
    }
    """
    int64_t sej_step(int64_t size, int64_t guess) nogil
    void sej_populate(unsigned char *data, int64_t size) nogil

cdef struct Block:
    int64_t position
    int64_t end
    int64_t messages
    uint32_t crc32c

cdef struct View:  # of Arrow: up to 12 bytes are inside, longer ones are in a buffer
    int32_t size
    unsigned char prefix[4]
    int32_t buffer
    int32_t at

cdef enum:
    INLINE = 12
    SPARE = 16  # bytes after the data, so that INLINE bytes can be copied from anywhere in it
    ALIGN = 64
    MOST = 1 << 30  # bytes of one call: a view has 32 bits for a position


cdef class _Plan:
    """The next blocks, and where what is read of them is written; NULL: not wanted."""
    cdef Block *blocks
    cdef int64_t count
    cdef int64_t messages
    cdef int64_t size
    cdef int64_t largest
    cdef bint fresh  # the memory has no pages yet
    cdef int64_t *offsets
    cdef int64_t *timestamps
    cdef int32_t *types
    cdef View *keys
    cdef View *values

    def __dealloc__(self):
        PyMem_RawFree(self.blocks)

    def __cinit__(self, list entries, int64_t position, int64_t due, int64_t limit, int64_t limit_bytes):
        """Take adjacent blocks from the end of the list, up to the limits; the first is where the next message is."""
        cdef int64_t at = len(entries) - 1
        cdef int64_t room = min(limit_bytes, <int64_t> MOST), first = position
        cdef Block *block
        self.blocks = <Block *> PyMem_RawMalloc((at + 1) * sizeof(Block))
        if self.blocks == NULL:
            raise MemoryError()
        while at >= 0:
            entry = entries[at]
            block = &self.blocks[self.count]
            try:
                block.position, block.end, block.messages = entry[0], entry[1], entry[3]
            except OverflowError:  # no entry of a real segment
                break
            block.crc32c = entry[4]
            if block.position != position or entry[2] != due:
                break
            if block.end - first > room or self.messages + block.messages > limit or due > INT64_MAX - block.messages:
                break
            if block.messages > (block.end - block.position) // OVERHEAD:  # a stale entry must not take much memory
                break
            position, due = block.end, due + block.messages
            self.largest = max(self.largest, block.end - block.position)
            self.size = position - first
            self.messages += block.messages
            self.count += 1
            at -= 1


cdef inline void look_at(View *view, const unsigned char *p, int64_t size, int64_t at) noexcept nogil:
    """Make the view of the bytes at p, which are at a position of the buffer."""
    view.size = <int32_t> size
    if size <= INLINE:
        memcpy(view.prefix, p, INLINE)
        memset(view.prefix + size, 0, INLINE - size)
    else:
        memcpy(view.prefix, p, 4)
        view.buffer = 0
        view.at = <int32_t> at


cdef int64_t decode(_Plan plan, Block *block, const unsigned char *data, int64_t begin, int64_t row, int64_t due
                    ) noexcept nogil:
    """Write the rows of a block, whose bytes are at ``begin`` of the buffer.

    Returns:
        How many of these bytes the views refer to; -1 if the bytes are not the messages of the block.
    """
    cdef const unsigned char *p = data + begin
    cdef const unsigned char *stop = p + (block.end - block.position)
    cdef int64_t end = row + block.messages, size = 0, last, key, used = 0
    while row < end:
        last = size
        size = whole(p, stop - p)
        if size == 0 or get64(p) != <uint64_t> due:  # the largest offset is in no plan
            return -1
        plan.timestamps[row] = <int64_t> get64(p + 8)
        if plan.offsets != NULL:
            plan.offsets[row] = due
        if plan.types != NULL:
            plan.types[row] = p[16]
        key = p[17]
        if plan.keys != NULL:
            look_at(&plan.keys[row], p + HEAD, key, p + HEAD - data)
            if key > INLINE:
                used += key
        if plan.values != NULL:
            look_at(&plan.values[row], p + HEAD + 4 + key, size - OVERHEAD - key, p + HEAD + 4 + key - data)
            if size - OVERHEAD - key > INLINE:
                used += size - OVERHEAD - key
        p += sej_step(size, last)
        row += 1
        due += 1
    return used if p == stop else -1


cdef inline int64_t move(View *view, unsigned char *data, int64_t to) noexcept nogil:
    """Move the bytes of a view down; return where they end."""
    if view.size <= INLINE:
        return to
    memmove(data + to, data + view.at, view.size)
    view.at = <int32_t> to
    return to + view.size


cdef void compact(_Plan plan, unsigned char *data, int64_t begin, int64_t row, int64_t end) noexcept nogil:
    """Move the bytes that views refer to together, from ``begin`` on: those between them would take up memory."""
    for row in range(row, end):
        if plan.keys != NULL:
            begin = move(&plan.keys[row], data, begin)
        if plan.values != NULL:
            begin = move(&plan.values[row], data, begin)


cdef int64_t run(_Plan plan, int fd, unsigned char *data, bint keep, int64_t due, int64_t *rows, int64_t *used
                 ) noexcept nogil:
    """Read the blocks of a plan; return how many were good. Without ``keep`` each is read into the same memory."""
    cdef int64_t at = 0, begin = 0, size, referred
    cdef Block *block
    while at < plan.count:
        block = &plan.blocks[at]
        size = block.end - block.position
        if keep and plan.fresh:
            sej_populate(data + begin, size)
        if not read_whole(fd, data + begin, size, block.position):
            break
        if fast_crc32c(data + begin, size, 0) != block.crc32c:
            break
        referred = decode(plan, block, data, begin, rows[0], due + rows[0])
        if referred < 0:
            break
        if keep:
            if referred < size - (size >> 3):
                compact(plan, data, begin, rows[0], rows[0] + block.messages)
                size = referred
            begin = (begin + size + ALIGN - 1) & -ALIGN
        rows[0] += block.messages
        at += 1
    used[0] = begin
    return at


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


def fixed_columns(int fd, list entries, int64_t position, int64_t due, int64_t limit, int64_t limit_bytes, bint types):
    """Return the columns without keys and values; None if the first block must be read in another way."""
    cdef _Plan plan = _Plan(entries, position, due, limit, limit_bytes)
    cdef int64_t rows = 0, used = 0, good
    cdef unsigned char *data
    if plan.count == 0:
        return None
    cdef bytes timestamps = PyBytes_FromStringAndSize(NULL, plan.messages * 8)
    cdef bytes kinds = PyBytes_FromStringAndSize(NULL, plan.messages * 4 if types else 0)
    plan.timestamps = <int64_t *> PyBytes_AS_STRING(timestamps)
    plan.types = <int32_t *> PyBytes_AS_STRING(kinds) if types else NULL
    data = <unsigned char *> PyMem_RawMalloc(plan.largest + SPARE)
    if data == NULL:
        raise MemoryError()
    with nogil:
        good = run(plan, fd, data, False, due, &rows, &used)
        PyMem_RawFree(data)
    if good == 0:
        return None
    if rows < plan.messages:
        timestamps, kinds = timestamps[:rows * 8], kinds[:rows * 4]
    return Columns(rows, plan.blocks[good - 1].end, timestamps, kinds, b"", b"", b"", b"")


def views(int fd, list entries, int64_t position, int64_t due, int64_t limit, int64_t limit_bytes,
          bint types, bint keys, bint values, allocate):
    """Return the columns with keys and values as views; None if the first block must be read in another way."""
    cdef _Plan plan = _Plan(entries, position, due, limit, limit_bytes)
    cdef int64_t rows = 0, used = 0, good, at = 0
    cdef Py_buffer raw
    cdef unsigned char *start
    cdef list widths = [8, 8, 4 if types else 0, 16 if keys else 0, 16 if values else 0]
    cdef list places = []
    if plan.count == 0:
        return None
    for width in widths:
        places.append(at)
        at = (at + <int64_t> width * plan.messages + ALIGN - 1) & -ALIGN
    memory, plan.fresh = allocate(at + plan.size + plan.count * ALIGN + SPARE)
    PyObject_GetBuffer(memory, &raw, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
    try:
        if raw.len < at + plan.size + plan.count * ALIGN + SPARE:
            raise ValueError(f"the memory must have {at + plan.size + plan.count * ALIGN + SPARE} bytes, got {raw.len}")
        start = <unsigned char *> raw.buf
        plan.offsets = <int64_t *> (start + <int64_t> places[0])
        plan.timestamps = <int64_t *> (start + <int64_t> places[1])
        plan.types = <int32_t *> (start + <int64_t> places[2]) if types else NULL
        plan.keys = <View *> (start + <int64_t> places[3]) if keys else NULL
        plan.values = <View *> (start + <int64_t> places[4]) if values else NULL
        with nogil:
            if plan.fresh:
                sej_populate(start, at)
            good = run(plan, fd, start + at, True, due, &rows, &used)
    finally:
        PyBuffer_Release(&raw)
    if good == 0:
        return None
    parts = [memory[place : place + width * rows] for place, width in zip(places, widths)]
    return Views(rows, plan.blocks[good - 1].end, *parts, memory[at : at + used])
