"""The compiled buffer, for the compiled modules that append to it."""

from cpython.object cimport PyObject
from cython cimport final
from libc.stdint cimport int64_t


cdef int check_fork() except -1


@final
cdef class Buffer:
    cdef public int64_t offset
    cdef public int64_t limit
    cdef public int64_t batch_limit
    cdef public int64_t position
    cdef public int64_t direct_until
    cdef readonly bint interrupted
    cdef public object forgotten
    cdef public object path
    cdef readonly int64_t first_timestamp
    cdef readonly int64_t last_timestamp
    cdef readonly int64_t newest_timestamp
    cdef unsigned char *_data
    cdef int64_t _room
    cdef int64_t _used
    cdef int64_t _drained
    cdef bint _busy
    cdef bint _writing  # and still set after a write that failed
    cdef int64_t _look_at
    cdef object _drain
    cdef object _lock
    cdef object _refuse
    cdef object _write
    cdef int _descriptor
    cdef object _trouble

    cdef void _reset(self) noexcept
    cdef int _reserve(self, int64_t size) except -1
    cdef int _put(self, PyObject *value, PyObject *key, int64_t kind, int64_t time) except -1
    cdef void _count(self, int64_t messages, int64_t size, int64_t time) noexcept
    cdef bint _is_direct(self, int64_t size) noexcept
    cdef int _run_drain(self, int64_t taken=*) except -1
    cdef int _settle(self) except -1
    cdef bint _is_inside(self) except -1
    cdef int _require_room(self, int64_t count, int64_t expected) except -1
    cdef object _append_any(self, object value, object key, object type, object timestamp, object expect_offset)
    cdef int _drain_alone(self) except -1
    cdef object append_one(self, object value, object key, object type, object timestamp, object expect_offset)
