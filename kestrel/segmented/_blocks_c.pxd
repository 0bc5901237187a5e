"""Items that are decoded one by one, for the compiled calls of a reader."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t


cdef class Items:
    cdef bytes _data
    cdef Py_ssize_t _at
    cdef Py_ssize_t _count
    cdef int64_t _before
    cdef object _add_time
    cdef int64_t _errors_before
    cdef object _errors

    cdef object take(self, PyObject *spare)
