# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The codec compiled: the same names, results and errors as the reference in ``_codec_py``.

Errors are made by the reference: where these loops meet bytes or arguments that they do not take, they hand the same
call to ``_codec_py``, so that there is one wording and one truth.

The buffer relies on the interpreter's lock: between two calls into Python its methods are atomic, so an append that
need not drain takes no lock. ``_busy`` is set while bytes are on their way out or a batch is coming in; whoever finds
it set waits for the writer's lock.
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBUF_WRITABLE, PyBUF_C_CONTIGUOUS, PyObject_GetBuffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_NoMemory
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcpy

import os
from functools import partial

from sej import _codec_py as _reference
from sej._buffer_py import _interrupted
from sej._codec_py import Candidate, Columns, Run
from sej.message import Message as _Message

cdef extern from *:
    """
    #include <time.h>
    #include <string.h>
    #if defined(_MSC_VER)
    #include <stdlib.h>
    #define sej_swap32 _byteswap_ulong
    #define sej_swap64 _byteswap_uint64
    #else
    #define sej_swap32 __builtin_bswap32
    #define sej_swap64 __builtin_bswap64
    #endif
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define SEJ_BE32(x) (x)
    #define SEJ_BE64(x) (x)
    #else
    #define SEJ_BE32(x) sej_swap32(x)
    #define SEJ_BE64(x) sej_swap64(x)
    #endif
    static inline uint32_t sej_get32(const unsigned char *p) { uint32_t x; memcpy(&x, p, 4); return SEJ_BE32(x); }
    static inline uint64_t sej_get64(const unsigned char *p) { uint64_t x; memcpy(&x, p, 8); return SEJ_BE64(x); }
    static inline void sej_put32(unsigned char *p, uint32_t x) { x = SEJ_BE32(x); memcpy(p, &x, 4); }
    static inline void sej_put64(unsigned char *p, uint64_t x) { x = SEJ_BE64(x); memcpy(p, &x, 8); }
    #if defined(_WIN32)
    #include <io.h>
    #define sej_write(fd, data, size) _write(fd, data, (unsigned int)(size))
    #else
    #include <unistd.h>
    #define sej_write(fd, data, size) write(fd, data, size)
    #endif
    static inline int64_t sej_coarse(void) {
    #if defined(CLOCK_MONOTONIC_COARSE)
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    #else
        return INT64_MAX;  /* no cheap clock: the writer looks every time */
    #endif
    }
    static inline int64_t sej_now(void) {
        struct timespec now;
    #if defined(_MSC_VER)
        timespec_get(&now, TIME_UTC);
    #else
        clock_gettime(CLOCK_REALTIME, &now);
    #endif
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    """
    uint32_t sej_get32(const unsigned char *p) nogil
    uint64_t sej_get64(const unsigned char *p) nogil
    void sej_put32(unsigned char *p, uint32_t x) nogil
    void sej_put64(unsigned char *p, uint64_t x) nogil
    int64_t sej_now() nogil
    int64_t sej_coarse() nogil
    int64_t sej_write(int fd, const void *data, size_t size) nogil

cdef extern from "Python.h":
    long long PyLong_AsLongLong(object value) except? -1
    bint PyLong_CheckExact(object value)
    PyObject *PyList_GET_ITEM(PyObject *values, Py_ssize_t index)  # borrowed
    Py_ssize_t Py_SIZE(PyObject *value)

cdef extern from *:
    """
    static inline PyObject *new_tuple(PyTypeObject *type, Py_ssize_t size) {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, type, size);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) made->ob_hash = -1;  /* tuples remember their hash: not computed yet */
    #endif
        return (PyObject *)made;
    }
    #define raw_bytes(value) PyBytes_AS_STRING((PyObject *)(value))
    #define raw_is_bytes(value) PyBytes_CheckExact((PyObject *)(value))
    """
    PyObject *new_tuple(PyTypeObject *type, Py_ssize_t size)
    char *raw_bytes(PyObject *value)
    bint raw_is_bytes(PyObject *value)

cdef enum:
    HEAD = 18
    OVERHEAD = 26
    MAX_KEY = 127
    SPARE = 4 << 20  # a buffer that one huge message has blown up shrinks back to nothing above this

cdef int64_t MAX_SIZE = 2147483647
cdef int64_t MAX_VALUE = 2147483647 - OVERHEAD - MAX_KEY
cdef int64_t NO_TIME = INT64_MIN
cdef PyTypeObject *MESSAGE = <PyTypeObject *> _Message


cdef inline int64_t whole(const unsigned char *p, int64_t room) noexcept nogil:
    """The size of the well-formed message at p, or 0: not all there, or none."""
    cdef int64_t key, size
    if room < OVERHEAD:
        return 0
    key = <signed char> p[17]
    if key < 0 or room < OVERHEAD + key:
        return 0
    size = <int32_t> sej_get32(p + HEAD + key)
    if size < 0:
        return 0
    size += OVERHEAD + key
    if size > room or size > MAX_SIZE or <int32_t> sej_get32(p + size - 4) != size:
        return 0
    return size


cdef inline int64_t claimed(const unsigned char *p, int64_t room) noexcept nogil:
    """The size that the message at p claims to have, or 0 where its lengths are not all there or cannot be."""
    cdef int64_t key, size
    if room < HEAD:
        return 0
    key = <signed char> p[17]
    if key < 0 or room < HEAD + key + 4:
        return 0
    size = <int32_t> sej_get32(p + HEAD + key)
    return 0 if size < 0 or size + OVERHEAD + key > MAX_SIZE else size + OVERHEAD + key


cdef inline bint fits(PyObject *value, int64_t most) noexcept:
    """Whether these are bytes, and no more than that."""
    return raw_is_bytes(value) and Py_SIZE(value) <= most


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
            raise ValueError(f"an array of {width}-byte numbers is due, not of {self.raw.itemsize}-byte ones")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.raw)

    cdef Py_ssize_t count(self):
        return self.raw.len // self.raw.itemsize


cdef inline object make(const unsigned char *p, int64_t size, int64_t offset, object timestamp):
    cdef int64_t key = p[17]
    cdef object number = PyLong_FromLongLong(offset)
    cdef object kind = PyLong_FromLongLong(p[16])
    cdef object key_bytes = PyBytes_FromStringAndSize(<const char *> p + HEAD, key)
    cdef object value = PyBytes_FromStringAndSize(<const char *> p + HEAD + 4 + key, size - OVERHEAD - key)
    # Never tracked by the collector: numbers and bytes only, there is nothing for it to look at.
    cdef PyObject *raw = new_tuple(MESSAGE, 5)
    cdef object message
    if raw == NULL:
        PyErr_NoMemory()
    message = <object> raw
    Py_INCREF(number)
    PyTuple_SET_ITEM(message, 0, number)
    Py_INCREF(timestamp)
    PyTuple_SET_ITEM(message, 1, timestamp)
    Py_INCREF(kind)
    PyTuple_SET_ITEM(message, 2, kind)
    Py_INCREF(key_bytes)
    PyTuple_SET_ITEM(message, 3, key_bytes)
    Py_INCREF(value)
    PyTuple_SET_ITEM(message, 4, value)
    Py_DECREF_raw(raw)
    return message


cdef extern from *:
    """
    #define Py_DECREF_raw(x) Py_DECREF(x)
    """
    void Py_DECREF_raw(PyObject *)


encode = _reference.encode
message_size = _reference.message_size


def decode(data, int64_t position, int64_t end):
    """The message at position and where it ends; None if it is not all there yet."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *p = view.data + position
    cdef int64_t size = whole(p, end - position)
    if size == 0 or sej_get64(p) > 9223372036854775807ULL:
        return _reference.decode(data, position, end)
    return make(p, size, <int64_t> sej_get64(p), PyLong_FromLongLong(<int64_t> sej_get64(p + 8))), position + size


def decode_many(data, int64_t position, int64_t end, int64_t due, int64_t limit):
    """Messages due, due + 1, ... from position on, at most limit, and where the next one starts."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *p = view.data + position
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, time = 0
    cdef object timestamp = 0
    cdef list messages = []
    while count < limit:
        size = whole(p, stop - p)
        if size == 0 or <int64_t> sej_get64(p) != due:
            break
        if <int64_t> sej_get64(p + 8) != time:  # a batch that came together shares one number
            time = <int64_t> sej_get64(p + 8)
            timestamp = PyLong_FromLongLong(time)
        messages.append(make(p, size, due, timestamp))
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
    cdef int64_t count = 0, size, time, first = NO_TIME, last = NO_TIME, newest = NO_TIME
    while p - start < limit:
        size = whole(p, stop - p)
        if size == 0 or <int64_t> sej_get64(p) != due + count:
            break
        last = <int64_t> sej_get64(p + 8)
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
    """The run of good messages from position on, up to the first one that ends limit or more bytes further."""
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
            if size == 0 or <int64_t> sej_get64(p) != due + count:
                break
            to_offset[count] = due + count
            to_timestamp[count] = <int64_t> sej_get64(p + 8)
            to_size[count] = <int32_t> size
            p += size
            count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    return count, p - view.data


def columns(data, int64_t position, int64_t end, int64_t due, int64_t limit):
    """At most limit messages from position on, as columns."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *start = view.data + position
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, keys = 0, values = 0, key, at
    cdef bytes timestamps, types, key_ends, key_data, value_ends, value_data
    cdef int64_t *to_timestamp
    cdef int32_t *to_type
    cdef int32_t *to_key_end
    cdef int32_t *to_value_end
    cdef unsigned char *to_key
    cdef unsigned char *to_value
    with nogil:
        while count < limit:
            size = whole(p, stop - p)
            if size == 0 or <int64_t> sej_get64(p) != due + count:
                break
            key = p[17]
            if keys + key > MAX_SIZE or values + size - OVERHEAD - key > MAX_SIZE:
                break
            keys += key
            values += size - OVERHEAD - key
            p += size
            count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    timestamps = PyBytes_FromStringAndSize(NULL, count * 8)
    types = PyBytes_FromStringAndSize(NULL, count * 4)
    key_ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
    value_ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
    key_data = PyBytes_FromStringAndSize(NULL, keys)
    value_data = PyBytes_FromStringAndSize(NULL, values)
    to_timestamp = <int64_t *> PyBytes_AS_STRING(timestamps)
    to_type = <int32_t *> PyBytes_AS_STRING(types)
    to_key_end = <int32_t *> PyBytes_AS_STRING(key_ends)
    to_value_end = <int32_t *> PyBytes_AS_STRING(value_ends)
    to_key = <unsigned char *> PyBytes_AS_STRING(key_data)
    to_value = <unsigned char *> PyBytes_AS_STRING(value_data)
    with nogil:
        p = start
        keys = values = 0
        to_key_end[0] = to_value_end[0] = 0
        for at in range(count):
            key = p[17]
            size = <int32_t> sej_get32(p + HEAD + key)
            to_timestamp[at] = <int64_t> sej_get64(p + 8)
            to_type[at] = p[16]
            memcpy(to_key + keys, p + HEAD, key)
            memcpy(to_value + values, p + HEAD + key + 4, size)
            keys += key
            values += size
            to_key_end[at + 1] = <int32_t> keys
            to_value_end[at + 1] = <int32_t> values
            p += OVERHEAD + key + size
    return Columns(count, p - view.data, timestamps, types, key_ends, key_data, value_ends, value_data)


def find_candidate(data, int64_t position, int64_t end, int64_t due, int64_t damage, int64_t file_end):
    """The first message from position on that could follow damage."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *start = view.data
    cdef int64_t at = position, size = 0
    cdef uint64_t offset = 0
    with nogil:
        while at <= end - OVERHEAD:
            offset = sej_get64(start + at)
            if (offset <= 9223372036854775807ULL and <int64_t> offset > due
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


cdef class Buffer:
    """Encoded messages on their way to the file; see the reference."""
    cdef public int64_t offset
    cdef public int64_t limit
    cdef public int64_t batch_limit
    cdef public int64_t position
    cdef public int64_t steady_until
    cdef readonly int64_t first_timestamp
    cdef readonly int64_t last_timestamp
    cdef readonly int64_t newest_timestamp
    cdef unsigned char *_data
    cdef int64_t _room
    cdef int64_t _used
    cdef int64_t _drained
    cdef bint _busy
    cdef bint _writing  # and still set after a write that did not end well
    cdef int64_t _look_at
    cdef object _drain
    cdef object _lock
    cdef object _acquire
    cdef object _release
    cdef object _refuse
    cdef object _write
    cdef int _descriptor
    cdef object _trouble

    def __cinit__(self, int64_t offset, object drain, object lock):
        self.offset = offset
        self.limit = self.batch_limit = 1
        self._descriptor = -1
        self._drain = drain
        self._lock = lock
        self._acquire = lock.acquire
        self._release = lock.release
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
        cdef int64_t key_size = Py_SIZE(key), value_size = Py_SIZE(value)
        cdef int64_t size = OVERHEAD + key_size + value_size
        cdef unsigned char *p
        if self._used + size > self._room:
            self._reserve(size)
        p = self._data + self._used
        sej_put64(p, <uint64_t> self.offset)
        sej_put64(p + 8, <uint64_t> time)
        p[16] = <unsigned char> kind
        p[17] = <unsigned char> key_size
        memcpy(p + HEAD, raw_bytes(key), key_size)
        p += HEAD + key_size
        sej_put32(p, <uint32_t> value_size)
        memcpy(p + 4, raw_bytes(value), value_size)
        sej_put32(p + 4 + value_size, <uint32_t> size)
        if self._used == 0:
            self.first_timestamp = self.newest_timestamp = time
        elif time > self.newest_timestamp:
            self.newest_timestamp = time
        self.last_timestamp = time
        self._used += size
        self.offset += 1
        return 0

    cdef int _run_drain(self) except -1:
        """With the lock held: write what is pending, or let the writer do it where it has more to do than that."""
        cdef bint was_busy = self._busy
        cdef int64_t size = self._used - self._drained, taken
        cdef int failure = EINTR
        if self._writing:
            raise _interrupted()
        self._busy = self._writing = True
        try:
            if self.position + size < self.steady_until and sej_coarse() < self._look_at:
                taken = -1
                if self._descriptor >= 0:
                    with nogil:
                        taken = sej_write(self._descriptor, self._data + self._drained, size)
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
            self._busy = was_busy or self._refuse is not None
        return 0

    def append(self, value, key=b"", type=0, timestamp=None):
        """Encode one message; drain if that is due. Returns its offset."""
        cdef int64_t kind = 0, time = 0, offset
        if not (PyBytes_CheckExact(value) and PyBytes_CheckExact(key) and PyLong_CheckExact(type)
                and (timestamp is None or PyLong_CheckExact(timestamp))):
            value = _reference._as_bytes(value, "value")
            key = _reference._as_bytes(key, "key")
            _reference._check(key, value, type, 0 if timestamp is None else timestamp)
            type = int(type)
            timestamp = None if timestamp is None else int(timestamp)
        try:
            kind = PyLong_AsLongLong(type)
            time = 0 if timestamp is None else PyLong_AsLongLong(timestamp)
        except OverflowError:
            kind = -1
        if (kind < 0 or kind > 255 or PyBytes_GET_SIZE(key) > MAX_KEY
                or PyBytes_GET_SIZE(value) > MAX_SIZE - OVERHEAD - MAX_KEY):
            _reference._check(key, value, type, 0 if timestamp is None else timestamp)
        if self._busy:
            if self._refuse is not None:
                self._refuse()  # without the lock: in a forked child nobody may be there to let it go
            with self._lock:
                if self._refuse is not None:
                    self._refuse()
                offset = self.offset
                self._put(<PyObject *> value, <PyObject *> key, kind, sej_now() if timestamp is None else time)
                if self._used - self._drained >= self.limit:
                    self._run_drain()
                return offset
        offset = self.offset
        self._put(<PyObject *> value, <PyObject *> key, kind, sej_now() if timestamp is None else time)
        if self._used - self._drained >= self.limit:
            self._acquire()
            try:
                if self._used - self._drained >= self.limit:  # else somebody drained it meanwhile, closing maybe
                    if self._refuse is not None:
                        self._refuse()
                    self._run_drain()
            finally:
                self._release()
        return offset

    def append_many(self, values, keys=None, type=0, timestamp=None):
        """Encode many messages; nothing if one of them is invalid. Returns their offsets."""
        cdef list value_list = values if values.__class__ is list else list(values)
        cdef Py_ssize_t count = len(value_list), index
        cdef list key_list = None
        cdef list type_list = None
        cdef list time_list = None
        cdef int64_t kind = 0, time = 0, first = 0
        cdef object value, key = b""
        cdef PyObject *raw_key = <PyObject *> key
        if keys is not None:
            key_list = keys if keys.__class__ is list else list(keys)
        if isinstance(type, int):
            _reference._check(b"", b"", type, 0)
            kind = type
        else:
            type_list = list(type)
        if timestamp is None:
            time = sej_now()
        elif isinstance(timestamp, int):
            _reference._check(b"", b"", 0, timestamp)
            time = timestamp
        else:
            time_list = list(timestamp)
        for name, column in (("keys", key_list), ("type", type_list), ("timestamp", time_list)):
            if column is not None and len(column) != count:
                raise ValueError(f"{name} has {len(column)} entries for {count} values")
        # Look at everything before anything is taken: a batch with one bad message leaves nothing behind.
        for index in range(count):
            if (type_list is None and time_list is None and fits(PyList_GET_ITEM(<PyObject *> value_list, index), MAX_VALUE)
                    and (key_list is None or fits(PyList_GET_ITEM(<PyObject *> key_list, index), MAX_KEY))):
                continue
            value = value_list[index]
            if key_list is not None:
                key = key_list[index]
            if (not PyBytes_CheckExact(value) or not PyBytes_CheckExact(key) or PyBytes_GET_SIZE(key) > MAX_KEY
                    or PyBytes_GET_SIZE(value) > MAX_SIZE - OVERHEAD - MAX_KEY):
                if value_list is values:
                    value_list = list(value_list)
                if key_list is not None and key_list is keys:
                    key_list = list(key_list)
                value_list[index] = value = _reference._as_bytes(value, "value")
                key = _reference._as_bytes(key, "key")
                if key_list is not None:
                    key_list[index] = key
                _reference._check(key, value, 0, 0)
            if type_list is not None or time_list is not None:
                _reference._check(b"", b"", 0 if type_list is None else type_list[index],
                                  0 if time_list is None else time_list[index])
        if value_list is values:
            value_list = list(value_list)  # ours from here on: while a drain waits, others may run
        if key_list is not None and key_list is keys:
            key_list = list(key_list)
        if self._refuse is not None:
            self._refuse()
        with self._lock:
            if self._refuse is not None:
                self._refuse()
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
                self._busy = self._refuse is not None
        return range(first, first + count)

    def extend(self, data, run, int64_t start):
        """Take encoded messages as they stand: data[start:run.position], which measure found good."""
        cdef int64_t end = run.position
        cdef _View view = _View(data, start, end)
        cdef int64_t newest = run.newest_timestamp
        self._reserve(end - start)
        if self._used == 0:
            self.first_timestamp = self.newest_timestamp = run.first_timestamp
        memcpy(self._data + self._used, view.data + start, end - start)
        self._used += end - start
        self.last_timestamp = run.last_timestamp
        if newest > self.newest_timestamp:
            self.newest_timestamp = newest
        self.offset += run.messages
        if self._used - self._drained >= self.batch_limit:
            self._run_drain()

    def freeze(self):
        """Let no append in until thaw; with the lock held by the caller, who keeps it until then."""
        self._busy = True

    def thaw(self):
        """Let appends in again."""
        self._busy = self._refuse is not None

    def pending(self):
        """What was encoded and not drained; valid until the next call."""
        return PyMemoryView_FromMemory(<char *> self._data + self._drained, self._used - self._drained, 0x100)

    def block(self):
        """Everything since the last clear; valid until the next call."""
        return PyMemoryView_FromMemory(<char *> self._data, self._used, 0x100)

    def drained(self):
        """Take note that what was pending is written."""
        self.position += self._used - self._drained
        self._drained = self._used

    def steady(self, write, trouble, int64_t until, int64_t look_in_ns):
        """Write by itself up to a position of the file and for a time; then drain is called again."""
        self._write = write
        self._descriptor = -1
        if isinstance(write, partial) and write.func is os.write:
            self._descriptor = write.args[0]  # the same call without Python around it
        self._trouble = trouble
        self.steady_until = until
        self._look_at = sej_coarse() + look_in_ns if until else 0

    def clear(self):
        """Forget what is in it."""
        self._reset()
        if self._room > SPARE:
            PyMem_RawFree(self._data)
            self._data = NULL
            self._room = 0

    def flush(self):
        """Drain what is pending, if anything; with the lock held by the caller."""
        if self._used > self._drained:
            self._run_drain()

    def stop(self, refuse):
        """From now on every append calls refuse, which raises."""
        self._refuse = refuse
        self._busy = True
