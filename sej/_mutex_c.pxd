"""The compiled mutex, for the compiled modules that take it without a call into Python."""

from cpython.pythread cimport PyThread_type_lock


cdef class Mutex:
    cdef PyThread_type_lock _lock
    cdef unsigned long _owner
    cdef unsigned long _count
    cdef unsigned long _waiting
    cdef bint _locked

    cdef bint owned(self) noexcept
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    cdef bint _wait(self, unsigned long me, long long microseconds) except -1
