# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The writer's side of the codec compiled: the same names, results and errors as :mod:`sej.codec.buffer_reference`.

It relies on the interpreter's lock: between two calls into Python its methods are atomic, so an append that need not
drain takes no lock. ``_busy`` is set while bytes are on their way out or a batch is coming in; whoever finds it set
waits for the writer's lock.
"""

from cython cimport binding, final, no_gc_clear

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t
from libc.string cimport memcpy

from sej._mutex_c cimport Mutex, alone, check_fork, give, is_forked, take
from sej.codec._layout cimport (
    MAX_KEY, MAX_TYPE, MAX_VALUE, OVERHEAD, Py_SIZE, PyList_GET_ITEM, coarse_ns, fits, now_ns, put_message,
)

import os
from functools import partial

from sej.codec.arguments import as_bytes, check_message, full, nested

cdef extern from *:
    """
    #if defined(_WIN32)
    #include <io.h>
    #define sej_write(fd, data, size) _write(fd, data, (unsigned int)(size))
    #else
    #include <unistd.h>
    #define sej_write(fd, data, size) write(fd, data, size)
    #endif
    """
    int64_t sej_write(int fd, const void *data, size_t size) nogil

cdef extern from "Python.h":
    long long PyLong_AsLongLong(object value) except? -1
    bint PyLong_CheckExact(object value)

cdef enum:
    SPARE = 4 << 20  # a buffer that one huge message has enlarged beyond this is freed

cdef int64_t NO_TIME = INT64_MIN
cdef object ZERO = 0  # the interpreter has one object for each small number


@final
cdef class Buffer:
    """Encoded messages on their way to the file; see the reference."""

    def __cinit__(self, int64_t offset, object drain, object lock):
        self.offset = offset
        self.limit = self.batch_limit = 1
        self._descriptor = -1
        self._drain = drain
        self._lock = lock
        self._mutex = lock if isinstance(lock, Mutex) else None
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

    cdef int _run_drain(self) except -1:
        """Write the pending bytes, or call drain if the writer has more to do; the lock is held."""
        cdef bint was_busy = self._busy
        cdef int64_t size = self._used - self._drained, taken
        cdef int failure = EINTR
        self.interrupted = self._writing
        self._busy = self._writing = True
        try:
            if not self.interrupted and self.position + size < self.steady_until and coarse_ns() < self._look_at:
                taken = -1
                if self._descriptor >= 0 and alone():
                    taken = sej_write(self._descriptor, self._data + self._drained, size)
                    failure = errno
                elif self._descriptor >= 0:
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
        if self._mutex is not None:
            return self._mutex.owned()
        return hasattr(self._lock, "_is_owned") and self._lock._is_owned()

    @binding(False)  # a builtin method, which the interpreter calls faster
    def append(self, value, key=b"", type=0, timestamp=None):
        """Encode one message, and drain if the limit is reached. Return its offset."""
        return self.append_one(value, key, type, timestamp)

    cdef object append_one(self, object value, object key, object type, object timestamp):
        """Do it, for a caller in C."""
        cdef int64_t offset = self.offset
        if (self._busy or is_forked() or timestamp is not None or type is not ZERO or offset == INT64_MAX
                or not fits(<PyObject *> value, MAX_VALUE) or not fits(<PyObject *> key, MAX_KEY)):
            return self._append_any(value, key, type, timestamp)
        self._put(<PyObject *> value, <PyObject *> key, 0, now_ns())
        if self._used - self._drained >= self.limit:
            self._drain_alone()
        return offset

    cdef object _append_any(self, object value, object key, object type, object timestamp):
        """Do it, whatever the arguments are, and whatever another thread or process does."""
        cdef int64_t kind = 0, time = 0, offset
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
                if self.offset == INT64_MAX:
                    raise full()
                offset = self.offset
                self._put(<PyObject *> value, <PyObject *> key, kind, now_ns() if timestamp is None else time)
                if self._used - self._drained >= self.limit:
                    self._run_drain()
                return offset
        if self.offset == INT64_MAX:
            raise full()
        offset = self.offset
        self._put(<PyObject *> value, <PyObject *> key, kind, now_ns() if timestamp is None else time)
        if self._used - self._drained >= self.limit:
            self._drain_alone()
        return offset

    cdef int _drain_alone(self) except -1:
        """Take the lock and drain, if the limit is still reached."""
        if self._mutex is not None:
            take(self._mutex)
        else:
            self._lock.acquire()
        try:
            if self._used - self._drained >= self.limit:  # else another thread drained it, perhaps by closing
                if self._refuse is not None:
                    self._refuse()
                self._run_drain()
        finally:
            if self._mutex is not None:
                give(self._mutex)
            else:
                self._lock.release()
        return 0

    def append_many(self, values, keys=None, type=0, timestamp=None):
        """Encode many messages; none if one of them is invalid. Return their offsets."""
        cdef list value_list = list(values)  # a copy: what is checked here, other code could change
        cdef Py_ssize_t count = len(value_list), index
        cdef list key_list = None
        cdef list type_list = None
        cdef list time_list = None
        cdef int64_t kind = 0, time = 0, first = 0
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
            if (type_list is None and time_list is None and fits(PyList_GET_ITEM(<PyObject *> value_list, index), MAX_VALUE)
                    and (key_list is None or fits(PyList_GET_ITEM(<PyObject *> key_list, index), MAX_KEY))):
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
            first = self.offset
            if first > INT64_MAX - count:
                raise full()
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

    def freeze(self):
        """Refuse appends until thaw; the caller holds the lock until then."""
        self._busy = True

    def thaw(self):
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

    def steady(self, write, trouble, int64_t until, int64_t look_in_ns):
        """Write without drain up to a position of the file and for a time; then drain is called again."""
        self._write = write
        self._descriptor = -1
        if isinstance(write, partial) and write.func is os.write:
            self._descriptor = write.args[0]  # the same call without Python around it
        self._trouble = trouble
        self.steady_until = until
        self._look_at = coarse_ns() + look_in_ns if until else 0

    @property
    def in_doubt(self):
        """True while bytes are being written, or after an exception interrupted that."""
        return self._writing

    def doubt(self):
        """Call drain before anything more is encoded."""
        self._writing = self._busy = True

    def mended(self):
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
    def append(self, value, key=b"", type=0, timestamp=None):
        """Append one message, as the buffer's method does."""
        return self._buffer.append_one(value, key, type, timestamp)

    def __del__(self):
        if self._buffer is not None and self._buffer.forgotten is not None:  # None: it was called with a wrong argument
            self._buffer.forgotten()
