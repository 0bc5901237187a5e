# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The codec compiled: the names, results and errors of :mod:`sej.codec.reference` and :mod:`sej.codec.buffer_reference`.

:func:`take_and_end` reads the log of a queue, whose layout is in :mod:`sej.queue.log.format`.

Errors are made by the reference: if these loops meet bytes or arguments that they do not take, they pass the call to the
reference.

The buffer relies on the interpreter's lock: between two calls into Python its methods are atomic, so an append that need
not drain takes no lock. ``_busy`` is set while bytes are on their way out or a batch is coming in. A thread that finds
it set waits for the writer's lock. A thread that is the only one writes while it keeps the interpreter's lock, so it
needs no other lock either.

A forked child is noticed by a page that the kernel fills with zeros in each child. If the system has no such page, the
buffer compares pids, as :mod:`sej.fork` does.
"""

from cython cimport binding, final, no_gc_clear

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_CONTIG_RO, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_CheckExact, PyLong_FromLongLong
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject, PyTypeObject
from libc.errno cimport EINTR, ENOSYS, ENXIO, EPERM, errno
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.string cimport memcmp, memcpy

from sej.codec._layout cimport (
    HEAD, MAX_KEY, MAX_SIZE, MAX_TYPE, MAX_VALUE, OVERHEAD, Py_SIZE, PyList_GET_ITEM, alone, coarse_ns, fits, get32, get64,
    now_ns, put_message, whole,
)

import os
from functools import partial

from sej.codec import reference as _reference
from sej.codec.arguments import as_bytes, as_expected, check_message, conflict, full, nested
from sej.codec.reference import Candidate, Columns, Run
from sej.message import Message as _Message
from sej.fork import notice_fork

cdef extern from *:
    """
    enum { SEJ_FIELDS = 5 };
    /* A new message. The collector never tracks it: numbers and bytes only, there is nothing for it to traverse. */
    static inline PyObject *sej_message(PyTypeObject *type, int64_t offset, PyObject *timestamp, PyObject *kind,
                                        const char *key, Py_ssize_t key_size, const char *value, Py_ssize_t value_size) {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, type, SEJ_FIELDS);
        if (made == NULL)
            return NULL;
    #if PY_VERSION_HEX >= 0x030E0000
        made->ob_hash = -1;  /* tuples remember their hash: not computed yet */
    #endif
        PyObject **fields = made->ob_item;
        fields[0] = PyLong_FromLongLong(offset);
        fields[1] = Py_NewRef(timestamp);
        fields[2] = Py_NewRef(kind);
        fields[3] = PyBytes_FromStringAndSize(key, key_size);
        fields[4] = PyBytes_FromStringAndSize(value, value_size);
        if (fields[0] == NULL || fields[3] == NULL || fields[4] == NULL)
            Py_CLEAR(made);
        return (PyObject *)made;
    }
    #include <errno.h>
    #include <unistd.h>
    #include <fcntl.h>
    #include <signal.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <sys/syscall.h>
    #ifndef SYS_openat2
    #define SYS_openat2 437
    #endif
    /* Open a file at the path; no part of it is a symbolic link. */
    static int sej_open(const char *path, int flags) {
        struct { uint64_t flags, mode, resolve; } how = {flags, flags & O_CREAT ? 0666 : 0, 4};  /* RESOLVE_NO_SYMLINKS */
        return (int) syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
    }
    static int sej_regular(int fd) {
        struct stat found;
        return fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
    }
    /* What replace_leased does to an open file; fields: its status. 1: written; 0: not; -1: an error after a part. */
    static int sej_replace(int fd, int64_t *fields, int count, const int64_t *at, const char **old, const char **now,
                           const int64_t *sizes, const char *never, char *room) {
        struct stat found;
        if (fcntl(fd, F_SETSIG, SIGURG) || fcntl(fd, F_SETLEASE, F_WRLCK) || fstat(fd, &found) || !S_ISREG(found.st_mode)
            || (int64_t) found.st_ino != fields[0] || found.st_size != fields[1]
            || found.st_mtim.tv_sec * 1000000000LL + found.st_mtim.tv_nsec != fields[2])
            return 0;
        for (int i = 0; i < count; i++) {
            int64_t size = pread(fd, room, sizes[i] + 1, at[i]);
            if (size < sizes[i] || memcmp(room, old[i], sizes[i]) || (!i && size > sizes[i] && strchr(never, room[sizes[i]])))
                return 0;
        }
        if (fcntl(fd, F_GETLEASE) != F_WRLCK)
            return 0;
        for (int i = 0; i < count; i++) {
            int64_t first = 0, end = sizes[i];
            while (first < end && old[i][first] == now[i][first])
                first++;
            while (end > first && old[i][end - 1] == now[i][end - 1])
                end--;
            ssize_t done = end > first ? pwrite(fd, now[i] + first, end - first, at[i] + first) : 0;
            if (done != end - first) {
                errno = done < 0 ? errno : EIO;
                return -1;
            }
        }
        if (fstat(fd, &found))
            return -1;
        fields[1] = found.st_size;
        fields[2] = found.st_mtim.tv_sec * 1000000000LL + found.st_mtim.tv_nsec;
        return found.st_nlink > 0;
    }
    #ifndef MADV_WIPEONFORK
    #define MADV_WIPEONFORK 18
    #endif
    /* A page whose first byte is 1, and 0 in a forked child; always 0 if the system has none. */
    static unsigned char *sej_page(void) {
        static unsigned char never[1];
        long size = sysconf(_SC_PAGESIZE);
        void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED || madvise(page, size, MADV_WIPEONFORK) != 0)
            return never;
        *(unsigned char *)page = 1;
        return page;
    }
    /* Return size. If messages have one size, the processor predicts the branch, and goes to the next message before it
       has read the size of this one. The empty assembly keeps the compiler from joining both ways. */
    static inline int64_t sej_step(int64_t size, int64_t guess) {
    #if defined(__GNUC__)
        if (__builtin_expect(size == guess, 1)) {
            __asm__("" : "+r"(guess));
            return guess;
        }
    #endif
        return size;
    }
    """
    int64_t step "sej_step"(int64_t size, int64_t guess) nogil
    int64_t write(int fd, const void *data, size_t size) nogil
    int c_close "close"(int fd) nogil
    int O_DIRECTORY, O_CLOEXEC
    int sej_open(const char *path, int flags) nogil
    bint sej_regular(int fd) nogil
    int sej_replace(int fd, int64_t *fields, int count, const int64_t *at, const char **old, const char **now,
                    const int64_t *sizes, const char *never, char *room) nogil
    int O_RDWR, O_NONBLOCK, O_NOFOLLOW
    unsigned char *sej_page()
    object sej_message(PyTypeObject *type, int64_t offset, object timestamp, object kind,
                       const char *key, Py_ssize_t key_size, const char *value, Py_ssize_t value_size)


cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(object path)
    object PyErr_SetFromErrnoWithFilenameObject(object kind, object path)
    int PyErr_CheckSignals() except -1
    long long PyLong_AsLongLong(object value) except? -1
    long long PyLong_AsLongLongAndOverflow(PyObject *value, int *overflow)

cdef enum:
    RECORD = 40  # of a queue's log; LEASE and DONE: two of its kinds
    LEASE = 1
    DONE = 2
    SPARE = 4 << 20  # a buffer that one huge message has enlarged beyond this is freed

cdef int64_t NO_TIME = INT64_MIN
cdef object ZERO = 0  # the interpreter has one object for each small number
cdef unsigned char *PAGE = sej_page()
cdef bint WIPED = PAGE[0]  # whether the system has such a page
cdef PyTypeObject *MESSAGE = <PyTypeObject *> _Message
assert len(_Message._fields) == 5


cdef inline int64_t claimed(const unsigned char *p, int64_t room) noexcept nogil:
    """Return the size in the lengths of the message at p, or 0 if the lengths are incomplete or impossible."""
    cdef int64_t key, size
    if room < HEAD:
        return 0
    key = <signed char> p[17]
    if key < 0 or room < HEAD + key + 4:
        return 0
    size = <int32_t> get32(p + HEAD + key)
    return 0 if size < 0 or size + OVERHEAD + key > MAX_SIZE else size + OVERHEAD + key


cdef inline bint is_due(const unsigned char *p, int64_t due, int64_t count) noexcept nogil:
    """Return whether the message at p has the offset due + count. The largest offset is only expected, never used."""
    cdef uint64_t offset = <uint64_t> due + <uint64_t> count
    return get64(p) == offset and offset != <uint64_t> INT64_MAX


cdef class _View:
    """A buffer held for the length of a call, with its bounds checked once."""
    cdef Py_buffer raw
    cdef bint held
    cdef const unsigned char *data

    def __cinit__(self, object data, int64_t position, int64_t end):
        PyObject_GetBuffer(data, &self.raw, PyBUF_CONTIG_RO)
        self.held = True
        self.data = <const unsigned char *> self.raw.buf
        if position < 0 or end < position or end > self.raw.len:
            raise ValueError(f"position {position} and end {end} do not lie in {self.raw.len} bytes")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.raw)


cdef class _Array:
    """A writable array of fixed-width numbers."""
    cdef Py_buffer raw
    cdef bint held

    def __cinit__(self, object data, Py_ssize_t width):
        PyObject_GetBuffer(data, &self.raw, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        self.held = True
        if self.raw.itemsize != width:
            raise ValueError(f"an array must have {width}-byte numbers, got {self.raw.itemsize}-byte ones")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.raw)

    cdef Py_ssize_t count(self):
        return self.raw.len // self.raw.itemsize


cdef inline object make(const unsigned char *p, int64_t size, int64_t offset, object timestamp, object kind):
    """Return the message at p, which is whole."""
    cdef int64_t key = p[17]
    cdef const char *data = <const char *> p + HEAD
    return sej_message(MESSAGE, offset, timestamp, kind, data, key, data + key + 4, size - OVERHEAD - key)


message_size = _reference.message_size


def encode(offset, timestamp, type, key, value):
    """One message; the reference encodes one of other types, and refuses one that does not fit."""
    if not (
        PyLong_CheckExact(offset) and PyLong_CheckExact(timestamp) and PyLong_CheckExact(type)
        and 0 <= offset <= INT64_MAX and NO_TIME <= timestamp <= INT64_MAX and 0 <= type <= MAX_TYPE
        and fits(<PyObject *> key, MAX_KEY) and fits(<PyObject *> value, MAX_VALUE)
    ):
        return _reference.encode(offset, timestamp, type, key, value)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, OVERHEAD + Py_SIZE(<PyObject *> key) + Py_SIZE(<PyObject *> value))
    put_message(<unsigned char *> PyBytes_AS_STRING(out), offset, timestamp, type, <PyObject *> key, <PyObject *> value)
    return out


def decode(data, int64_t position, int64_t end):
    """Return the message at position and where it ends; None if it is incomplete."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *p = view.data + position
    cdef int64_t size = whole(p, end - position)
    if size == 0 or get64(p) > 9223372036854775807ULL:
        return _reference.decode(data, position, end)
    return make(p, size, <int64_t> get64(p), PyLong_FromLongLong(<int64_t> get64(p + 8)), p[16]), position + size


def decode_many(data, int64_t position, int64_t end, int64_t due, int64_t limit):
    """Return the messages due, due + 1, ... from position on, at most limit, and where the next one starts."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *p = view.data + position
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, time = 0
    cdef unsigned char type = 0
    cdef object timestamp = 0, kind = 0
    cdef list messages = []
    while count < limit:
        size = whole(p, stop - p)
        if size == 0 or not is_due(p, due, 0):
            break
        if <int64_t> get64(p + 8) != time:  # a batch that came together shares one number
            time = <int64_t> get64(p + 8)
            timestamp = PyLong_FromLongLong(time)
        if p[16] != type:
            type = p[16]
            kind = type
        messages.append(make(p, size, due, timestamp, kind))
        p += size
        due += 1
        count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    return messages, p - view.data


cdef object _measure(_View view, object data, int64_t position, int64_t end, int64_t due, int64_t limit):
    cdef const unsigned char *start = view.data + position
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, first = NO_TIME, last = NO_TIME, newest = NO_TIME
    while p - start < limit:
        size = whole(p, stop - p)
        if size == 0 or not is_due(p, due, count):
            break
        last = <int64_t> get64(p + 8)
        if count == 0:
            first = newest = last
        elif last > newest:
            newest = last
        p += size
        count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    return Run(count, p - view.data, first, last, newest)


def measure(data, int64_t position, int64_t end, int64_t due, int64_t limit):
    """Return the run of good messages from position on, up to the first that ends limit or more bytes further."""
    return _measure(_View(data, position, end), data, position, end, due, limit)


def walk(data, int64_t position, int64_t end, int64_t due, offsets, timestamps, sizes):
    """Fill three arrays with the offset, timestamp (ns) and size (bytes) of the messages from position on."""
    cdef _View view = _View(data, position, end)
    cdef _Array offset_array = _Array(offsets, 8)
    cdef _Array timestamp_array = _Array(timestamps, 8)
    cdef _Array size_array = _Array(sizes, 4)
    cdef int64_t limit = min(offset_array.count(), timestamp_array.count(), size_array.count())
    cdef int64_t *to_offset = <int64_t *> offset_array.raw.buf
    cdef int64_t *to_timestamp = <int64_t *> timestamp_array.raw.buf
    cdef int32_t *to_size = <int32_t *> size_array.raw.buf
    cdef const unsigned char *p = view.data + position
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size
    with nogil:
        while count < limit:
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            to_offset[count] = due + count
            to_timestamp[count] = <int64_t> get64(p + 8)
            to_size[count] = <int32_t> size
            p += size
            count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    return count, p - view.data


cdef object fixed_columns(_View view, int64_t position, int64_t end, int64_t due, int64_t limit):
    """Return the columns without keys and values: one walk, into arrays that are large enough for any messages."""
    cdef int64_t room = max(min(limit, (end - position) // OVERHEAD), 0)
    cdef const unsigned char *start = view.data + position
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size = 0, last
    cdef bytes timestamps = PyBytes_FromStringAndSize(NULL, room * 8)
    cdef bytes types = PyBytes_FromStringAndSize(NULL, room * 4)
    cdef int64_t *to_timestamp = <int64_t *> PyBytes_AS_STRING(timestamps)
    cdef int32_t *to_type = <int32_t *> PyBytes_AS_STRING(types)
    with nogil:
        while count < room:
            last = size
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            to_timestamp[count] = <int64_t> get64(p + 8)
            to_type[count] = p[16]
            p += step(size, last)
            count += 1
    if count < room:
        timestamps, types = timestamps[:count * 8], types[:count * 4]
    return Columns(count, p - view.data, timestamps, types, b"", b"", b"", b"")


def renumber(data, int64_t position, int64_t end, int64_t due, int64_t first):
    """Overwrite the offsets of the messages from position on, in place."""
    cdef _View view = _View(data, position, end)
    cdef unsigned char *p = <unsigned char *> view.data + position
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, shift
    cdef uint64_t number
    if not isinstance(data, bytearray):
        raise TypeError(f"data must be a bytearray, got {type(data).__name__}")
    with nogil:
        while True:
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            number = <uint64_t> first + <uint64_t> count
            for shift in range(8):
                p[shift] = <unsigned char> ((number >> (56 - 8 * shift)) & 0xFF)
            p += size
            count += 1
    if count == 0:
        _reference._check_due(data, position, end, due)
    return count, p - view.data


def columns(data, int64_t position, int64_t end, int64_t due, int64_t limit, bint keys=True, bint values=True):
    """Return at most limit messages from position on, as columns; without keys or values these are not copied."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *start = view.data + position
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, key_bytes = 0, value_bytes = 0, key, at
    cdef bytes timestamps, types, key_ends = b"", key_data = b"", value_ends = b"", value_data = b""
    cdef int64_t *to_timestamp
    cdef int32_t *to_type
    cdef int32_t *to_key_end = NULL
    cdef int32_t *to_value_end = NULL
    cdef unsigned char *to_key = NULL
    cdef unsigned char *to_value = NULL
    if not keys and not values:
        found = fixed_columns(view, position, end, due, limit)
        if not found.messages and limit > 0:
            _reference._check_due(data, position, end, due)
        return found
    with nogil:
        while count < limit:
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            key = p[17]
            if key_bytes + key > MAX_SIZE or value_bytes + size - OVERHEAD - key > MAX_SIZE:
                break
            key_bytes += key
            value_bytes += size - OVERHEAD - key
            p += size
            count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    timestamps = PyBytes_FromStringAndSize(NULL, count * 8)
    types = PyBytes_FromStringAndSize(NULL, count * 4)
    to_timestamp = <int64_t *> PyBytes_AS_STRING(timestamps)
    to_type = <int32_t *> PyBytes_AS_STRING(types)
    if keys:
        key_ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        key_data = PyBytes_FromStringAndSize(NULL, key_bytes)
        to_key_end = <int32_t *> PyBytes_AS_STRING(key_ends)
        to_key = <unsigned char *> PyBytes_AS_STRING(key_data)
        to_key_end[0] = 0
    if values:
        value_ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        value_data = PyBytes_FromStringAndSize(NULL, value_bytes)
        to_value_end = <int32_t *> PyBytes_AS_STRING(value_ends)
        to_value = <unsigned char *> PyBytes_AS_STRING(value_data)
        to_value_end[0] = 0
    with nogil:
        p = start
        key_bytes = value_bytes = 0
        for at in range(count):
            key = p[17]
            size = <int32_t> get32(p + HEAD + key)
            to_timestamp[at] = <int64_t> get64(p + 8)
            to_type[at] = p[16]
            if keys:
                memcpy(to_key + key_bytes, p + HEAD, key)
                key_bytes += key
                to_key_end[at + 1] = <int32_t> key_bytes
            if values:
                memcpy(to_value + value_bytes, p + HEAD + key + 4, size)
                value_bytes += size
                to_value_end[at + 1] = <int32_t> value_bytes
            p += OVERHEAD + key + size
    return Columns(count, p - view.data, timestamps, types, key_ends, key_data, value_ends, value_data)


def find_candidate(data, int64_t position, int64_t end, int64_t due, int64_t damage, int64_t file_end):
    """Return the first message from position on that could follow damage."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *start = view.data
    cdef int64_t at = position, size = 0
    cdef uint64_t offset = 0
    with nogil:
        while at <= end - OVERHEAD:
            offset = get64(start + at)
            if (offset < <uint64_t> INT64_MAX and <int64_t> offset > due
                    and <int64_t> offset - due <= (at - damage) // OVERHEAD):
                size = claimed(start + at, end - at)
                if size and size <= end - at:
                    size = whole(start + at, end - at)
                elif size > file_end - at:
                    size = 0
                if size:
                    break
            at += 1
    return Candidate(at, at + size, offset) if size else None


def take_and_end(bytes data not None, dict leased not None, uint64_t frontier, uint64_t most):
    """Apply LEASE and DONE of a queue's log to what is leased; the reference is in :mod:`sej.queue.log.format`."""
    cdef const unsigned char *start = <const unsigned char *> PyBytes_AS_STRING(data)
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = start + PyBytes_GET_SIZE(data)
    cdef uint64_t first, after, offset, fresh = frontier
    cdef int64_t ended = 0
    cdef dict begun = {}
    cdef const unsigned char *last = NULL
    while stop - p >= RECORD:
        first, after = get64(p + 8), get64(p + 16)
        if after > first and after - first > most:
            break
        if p[0] == LEASE and first < after and (after <= frontier or after - frontier <= most):
            frontier, last = after, p
            if first >= fresh:
                fresh = after
                if stop - p >= 2 * RECORD and p[RECORD] == DONE and memcmp(p + 8, p + RECORD + 8, 16) == 0:
                    ended += after - first  # most items end in the next record
                    p += 2 * RECORD
                    continue
            lease = (get32(p + 4), get64(p + 24))
            for offset in range(first, after):
                begun[offset] = lease
        elif p[0] == DONE and after <= frontier:
            for offset in range(first, after):
                if begun.pop(offset, None) is not None or leased.pop(offset, None) is not None:
                    ended += 1
        else:
            break
        p += RECORD
    anchor = None if last == NULL else (get64(last + 16) - 1, get32(last + 32))
    return p - start, frontier, ended, begun, anchor


cdef int check_fork() except -1:
    """What sej.fork.notice_fork does, if this may be a forked child."""
    if PAGE[0] == 0:
        notice_fork()
        PAGE[0] = WIPED
    return 0


cdef inline bint is_within(PyObject *value, int64_t least, int64_t most):
    """Return whether a value is an exact int in a range; an int sets no error here."""
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(<object> value):
        return False
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0 and least <= number <= most


@final
cdef class Buffer:
    """Encoded messages on their way to the file; see the reference."""

    def __cinit__(self, int64_t offset, object drain, object lock):
        self.offset = offset
        self.limit = self.batch_limit = 1
        self._descriptor = -1
        self._drain = drain
        self._lock = lock
        self._reset()

    def __dealloc__(self):
        PyMem_RawFree(self._data)

    def __len__(self):
        return self._used

    cdef void _reset(self) noexcept:
        self._used = self._drained = 0
        self.first_timestamp = self.last_timestamp = self.newest_timestamp = NO_TIME

    cdef int _reserve(self, int64_t size) except -1:
        cdef int64_t room = self._used + size
        cdef void *data
        if room > self._room:
            room += room >> 2
            if room < 65536:
                room = 65536
            data = PyMem_RawRealloc(self._data, room)
            if data == NULL:
                raise MemoryError()
            self._data = <unsigned char *> data
            self._room = room
        return 0

    cdef inline int _put(self, PyObject *value, PyObject *key, int64_t kind, int64_t time) except -1:
        """Encode exact bytes that were checked."""
        cdef int64_t size = OVERHEAD + Py_SIZE(key) + Py_SIZE(value)
        if self._used + size > self._room:
            self._reserve(size)
        put_message(self._data + self._used, self.offset, time, kind, key, value)
        self._count(1, size, time)
        return 0

    cdef inline void _count(self, int64_t messages, int64_t size, int64_t time) noexcept:
        """Note that so many messages were encoded after the others."""
        if self._used == 0:
            self.first_timestamp = self.newest_timestamp = time
        elif time > self.newest_timestamp:
            self.newest_timestamp = time
        self.last_timestamp = time
        self._used += size
        self.offset += messages

    cdef inline bint _is_direct(self, int64_t size) noexcept:
        return self.position + size < self.direct_until and coarse_ns() < self._look_at

    cdef int _run_drain(self, int64_t taken=0) except -1:
        """Write the pending bytes, or call drain if the writer has more to do; the lock is held.

        ``taken`` bytes were written already; if it is not positive, none.
        """
        cdef bint was_busy = self._busy
        cdef int64_t size = self._used - self._drained
        cdef int failure = EINTR
        self.interrupted = self._writing
        self._busy = self._writing = True
        try:
            if taken > 0 or not self.interrupted and self._is_direct(size):
                if taken <= 0:
                    taken = -1
                    if self._descriptor >= 0:
                        with nogil:
                            taken = write(self._descriptor, self._data + self._drained, size)
                            failure = errno
                if taken < size:
                    try:
                        if taken < 0:
                            if failure != EINTR:
                                raise OSError(failure, os.strerror(failure))
                            taken = self._write(PyBytes_FromStringAndSize(<char *> self._data + self._drained, size))
                        if taken < size:
                            self._trouble(None, taken)
                    except BaseException as error:
                        self._trouble(error, 0)
                        raise
                self._drained = self._used
                self.position += size
            else:
                self._drain()
            self._writing = False
        finally:
            self._busy = was_busy or self._refuse is not None or self._writing
        return 0

    cdef int _settle(self) except -1:
        """Let the writer find out what the file holds, before another message gets an offset; the lock is held."""
        self._busy = self.interrupted = True
        try:
            self._drain()
        finally:
            self._busy = self._refuse is not None or self._writing
        return 0

    cdef bint _is_inside(self) except -1:
        """Return whether this thread already holds the lock."""
        return hasattr(self._lock, "_is_owned") and self._lock._is_owned()

    @binding(False)  # a builtin method, which the interpreter calls faster
    def append(self, value, key=b"", type=0, timestamp=None, *, expect_offset=None):
        """Encode one message, and drain if the limit is reached. Return its offset."""
        return self.append_one(value, key, type, timestamp, expect_offset)

    cdef object append_one(self, object value, object key, object type, object timestamp, object expect_offset):
        """Do it, for a caller in C."""
        cdef int64_t offset = self.offset
        if (self._busy or PAGE[0] == 0 or timestamp is not None or type is not ZERO or offset == INT64_MAX
                or expect_offset is not None
                or not fits(<PyObject *> value, MAX_VALUE) or not fits(<PyObject *> key, MAX_KEY)):
            return self._append_any(value, key, type, timestamp, expect_offset)
        self._put(<PyObject *> value, <PyObject *> key, 0, now_ns())
        if self._used - self._drained >= self.limit:
            self._drain_alone()
        return offset

    cdef int _require_room(self, int64_t count, int64_t expected) except -1:
        """Refuse messages if the journal cannot hold them, or they would not begin at the expected offset."""
        if self.offset > INT64_MAX - count:
            raise full()
        if expected >= 0 and expected != self.offset:
            raise conflict(self.path, expected, self.offset)
        return 0

    cdef object _append_any(self, object value, object key, object type, object timestamp, object expect_offset):
        """Do it, whatever the arguments are, and whatever another thread or process does."""
        cdef int64_t kind = 0, time = 0, offset, expected = as_expected(expect_offset)
        check_fork()
        if not (PyBytes_CheckExact(value) and PyBytes_CheckExact(key) and PyLong_CheckExact(type)
                and (timestamp is None or PyLong_CheckExact(timestamp))):
            value = as_bytes(value, "value")
            key = as_bytes(key, "key")
            check_message(key, value, type, 0 if timestamp is None else timestamp)
            type = int(type)
            timestamp = None if timestamp is None else int(timestamp)
        try:
            kind = PyLong_AsLongLong(type)
            time = 0 if timestamp is None else PyLong_AsLongLong(timestamp)
        except OverflowError:
            kind = -1
        if (kind < 0 or kind > MAX_TYPE or PyBytes_GET_SIZE(key) > MAX_KEY
                or PyBytes_GET_SIZE(value) > MAX_VALUE):
            check_message(key, value, type, 0 if timestamp is None else timestamp)
        if self._busy:
            if self._refuse is not None:
                self._refuse()  # without the lock: in a forked child its holder may not exist
            inside = self._is_inside()
            with self._lock:
                if self._refuse is not None:
                    self._refuse()
                if self._busy and inside:  # this is a signal handler
                    raise nested()
                if self._writing:
                    self._settle()
                self._require_room(1, expected)
                offset = self.offset
                self._put(<PyObject *> value, <PyObject *> key, kind, now_ns() if timestamp is None else time)
                if self._used - self._drained >= self.limit:
                    self._run_drain()
                return offset
        self._require_room(1, expected)
        offset = self.offset
        self._put(<PyObject *> value, <PyObject *> key, kind, now_ns() if timestamp is None else time)
        if self._used - self._drained >= self.limit:
            self._drain_alone()
        return offset

    cdef int _drain_alone(self) except -1:
        """Write the pending bytes: immediately if no other thread exists and the writer has no more to do, else locked."""
        cdef int64_t size = self._used - self._drained, taken = 0
        if self._descriptor >= 0 and self._is_direct(size) and alone():
            taken = write(self._descriptor, self._data + self._drained, size)
            if taken == size:
                self._drained = self._used
                self.position += size
                return 0
        with self._lock:
            if self._used - self._drained >= self.limit:  # else another thread drained it, perhaps by closing
                if self._refuse is not None:
                    self._refuse()
                self._run_drain(taken)
        return 0

    def append_many(self, values, keys=None, type=0, timestamp=None, *, expect_offset=None):
        """Encode many messages; none if one of them is invalid. Return their offsets."""
        cdef list value_list = list(values)  # a copy: what is checked here, other code could change
        cdef Py_ssize_t count = len(value_list), index
        cdef list key_list = None
        cdef list type_list = None
        cdef list time_list = None
        cdef int64_t kind = 0, time = 0, first = 0, expected = as_expected(expect_offset)
        cdef object value, key = b""
        cdef PyObject *raw_key = <PyObject *> key
        if keys is not None:
            key_list = list(keys)
        if isinstance(type, int):
            check_message(b"", b"", type, 0)
            kind = type
        else:
            type_list = list(type)
        if timestamp is None:
            time = now_ns()
        elif isinstance(timestamp, int):
            check_message(b"", b"", 0, timestamp)
            time = timestamp
        else:
            time_list = list(timestamp)
        for name, column in (("keys", key_list), ("type", type_list), ("timestamp", time_list)):
            if column is not None and len(column) != count:
                raise ValueError(f"{name} must have {count} entries, one for each value, got {len(column)}")
        # Check everything before anything is encoded: a batch with one bad message leaves nothing.
        for index in range(count):
            if (fits(PyList_GET_ITEM(<PyObject *> value_list, index), MAX_VALUE)
                    and (key_list is None or fits(PyList_GET_ITEM(<PyObject *> key_list, index), MAX_KEY))
                    and (type_list is None or is_within(PyList_GET_ITEM(<PyObject *> type_list, index), 0, MAX_TYPE))
                    and (time_list is None or is_within(PyList_GET_ITEM(<PyObject *> time_list, index), INT64_MIN, INT64_MAX))):
                continue
            value = value_list[index]
            if key_list is not None:
                key = key_list[index]
            if (not PyBytes_CheckExact(value) or not PyBytes_CheckExact(key) or PyBytes_GET_SIZE(key) > MAX_KEY
                    or PyBytes_GET_SIZE(value) > MAX_VALUE):
                value_list[index] = value = as_bytes(value, "value")
                key = as_bytes(key, "key")
                if key_list is not None:
                    key_list[index] = key
                check_message(key, value, 0, 0)
            if type_list is not None or time_list is not None:
                check_message(b"", b"", 0 if type_list is None else type_list[index],
                                  0 if time_list is None else time_list[index])
        check_fork()
        if self._refuse is not None:
            self._refuse()
        inside = self._is_inside()
        with self._lock:
            if self._refuse is not None:
                self._refuse()
            if self._busy and inside:
                raise nested()
            if self._writing:
                self._settle()
            self._require_room(count, expected)
            first = self.offset
            self._busy = True
            try:
                for index in range(count):
                    if key_list is not None:
                        raw_key = PyList_GET_ITEM(<PyObject *> key_list, index)
                    if type_list is not None:
                        kind = type_list[index]
                    if time_list is not None:
                        time = time_list[index]
                    self._put(PyList_GET_ITEM(<PyObject *> value_list, index), raw_key, kind, time)
                    if self._used - self._drained >= self.batch_limit:
                        self._run_drain()
                if self._used - self._drained >= self.limit:
                    self._run_drain()
            finally:
                self._busy = self._refuse is not None or self._writing
        return range(first, first + count)

    def extend(self, data, run, int64_t start):
        """Append encoded messages: data[start:run.position], which measure found good."""
        cdef int64_t end = run.position, newest = run.newest_timestamp
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_CONTIG_RO)
        try:
            if start < 0 or end < start or end > view.len:
                raise ValueError(f"position {start} and end {end} do not lie in {view.len} bytes")
            self._reserve(end - start)
            memcpy(self._data + self._used, <const char *> view.buf + start, end - start)
        finally:
            PyBuffer_Release(&view)
        if self._used == 0:
            self.first_timestamp = self.newest_timestamp = run.first_timestamp
        self._used += end - start
        self.last_timestamp = run.last_timestamp
        if newest > self.newest_timestamp:
            self.newest_timestamp = newest
        self.offset += run.messages
        if self._used - self._drained >= self.batch_limit:
            self._run_drain()

    def refuse_appends(self):
        """Refuse appends until allow_appends; the caller holds the lock until then."""
        self._busy = True

    def allow_appends(self):
        """Allow appends again."""
        self._busy = self._refuse is not None or self._writing

    def pending(self):
        """Return the bytes that were encoded and not drained; valid until the next call."""
        return PyMemoryView_FromMemory(<char *> self._data + self._drained, self._used - self._drained, 0x100)

    def block(self):
        """Return everything since the last clear; valid until the next call."""
        return PyMemoryView_FromMemory(<char *> self._data, self._used, 0x100)

    def drained(self):
        """Note that the pending bytes were written."""
        self.position += self._used - self._drained
        self._drained = self._used

    def set_direct_write(self, write, trouble, int64_t until, int64_t look_in_ns):
        """Write without drain up to a position of the file and for a time; then drain is called again."""
        self._write = write
        self._descriptor = -1
        if isinstance(write, partial) and write.func is os.write:
            self._descriptor = write.args[0]  # the same call without Python around it
        self._trouble = trouble
        self.direct_until = until
        self._look_at = coarse_ns() + look_in_ns if until else 0

    @property
    def in_doubt(self):
        """True while bytes are being written, or after an exception interrupted that."""
        return self._writing

    def doubt(self):
        """Call drain before anything more is encoded."""
        self._writing = self._busy = True

    def resolved(self):
        """Note that the writer knows what the file holds."""
        self._writing = self.interrupted = False

    def clear(self):
        """Drop its bytes."""
        self._reset()
        if self._room > SPARE:
            PyMem_RawFree(self._data)
            self._data = NULL
            self._room = 0

    def flush(self):
        """Drain pending bytes, if any; the caller holds the lock."""
        if self._used > self._drained:
            self._run_drain()

    def stop(self, refuse):
        """Let every later append call refuse, which raises, and release drain."""
        self._refuse = self._drain = refuse
        self._busy = True

    def handle(self):
        """Return the handle, for the user of the buffer."""
        return Handle(self)


@final
@no_gc_clear  # its finalizer and its method rely on the buffer
cdef class Handle:
    """What the user of a buffer holds; see the reference."""

    cdef Buffer _buffer

    def __cinit__(self, Buffer buffer not None):
        self._buffer = buffer

    @binding(False)
    def append(self, value, key=b"", type=0, timestamp=None, *, expect_offset=None):
        """Append one message, as the buffer's method does."""
        return self._buffer.append_one(value, key, type, timestamp, expect_offset)

    def __del__(self):
        if self._buffer is not None and self._buffer.forgotten is not None:  # None: it was called with a wrong argument
            self._buffer.forgotten()


@final
cdef class Descriptor:
    """Closes a descriptor when it is garbage-collected: sej.system.file._Owner, without a look at the file."""

    cdef int _fd

    def __cinit__(self):
        self._fd = -1

    def fileno(self):
        """Return the descriptor."""
        if self._fd < 0:
            raise ValueError("I/O operation on closed file")
        return self._fd

    def close(self):
        """Close it; a second call does nothing."""
        cdef int fd = self._fd, failed = 0
        self._fd = -1
        if fd >= 0:
            with nogil:
                failed = c_close(fd)
        if failed and errno != EINTR:
            PyErr_SetFromErrnoWithFilenameObject(OSError, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __dealloc__(self):
        if self._fd >= 0:
            c_close(self._fd)


cdef Descriptor open_plain(str path, int flags):
    """Open what no part of the path leads to by a symbolic link; None if the kernel cannot."""
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    cdef const char *raw = name
    cdef Descriptor owner = Descriptor.__new__(Descriptor)
    while True:
        with nogil:
            owner._fd = sej_open(raw, flags)
        if owner._fd >= 0:
            return owner
        if errno in (ENOSYS, EPERM):  # before Linux 5.6, or a filter of system calls that is as old
            return None
        if errno != EINTR:
            PyErr_SetFromErrnoWithFilenameObject(OSError, path)
        PyErr_CheckSignals()


def open_regular(str path not None, int flags):
    """Open a regular file as sej.system.file.opened does; return its Descriptor, or None if the kernel cannot.

    It has an owner before another bytecode runs.
    """
    cdef Descriptor owner = open_plain(path, flags)
    if owner is not None and not sej_regular(owner._fd):
        raise OSError(ENXIO, os.strerror(ENXIO), path)
    return owner


def open_folder(str path not None, int flags):
    """Open a directory as sej.system.file.open_folder does; return the descriptor, or None if the kernel cannot."""
    cdef Descriptor owner = open_plain(path, flags | O_DIRECTORY | O_CLOEXEC)
    if owner is None:
        return None
    cdef int fd = owner._fd
    owner._fd = -1
    return fd


def replace_leased(str path not None, tuple state not None, list parts not None, bytes never not None):
    """Replace parts of a file that is in a state, under a lease, if it has their old bytes; see the reference.

    It is one call, because it takes half of the time that its ten system calls take one by one from Python. It keeps the
    interpreter's lock: a child that another thread forks here would keep the file open, and its lease, which halts editors.
    """
    cdef int64_t fields[3]
    cdef int64_t at[2]
    cdef int64_t sizes[2]
    cdef const char *old[2]
    cdef const char *now[2]
    cdef char room[4096]
    cdef int count = 0, done = 0, fd, failed = 0
    cdef bytes before, after
    try:
        fields[0], fields[1], fields[2] = state
    except OverflowError:  # an inode from 2^63 on, or a time after 2262
        return None
    for position, before, after in parts:
        if count == 2 or len(before) >= sizeof(room) or len(before) != len(after):
            return None
        at[count], old[count], now[count], sizes[count] = position, before, after, len(before)
        count += 1
    cdef bytes name = PyUnicode_EncodeFSDefault(path)
    cdef const char *raw = name
    cdef const char *stop = never
    fd = sej_open(raw, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC)
    if fd >= 0:
        done = sej_replace(fd, fields, count, at, old, now, sizes, stop, room)
        failed = errno
        c_close(fd)
    if done < 0:
        raise OSError(failed, os.strerror(failed), path)
    return (fields[0], fields[1], fields[2]) if done else None
