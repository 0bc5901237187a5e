"""The compiled open file, for compiled modules that open files without a call into Python."""

from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from libc.stdint cimport int64_t

from sej._mutex_c cimport Mutex

cdef extern from *:
    """
    #include <sys/stat.h>
    #define sej_new_tuple(kind, row) (PyTuple_Type.tp_new((PyTypeObject *)(kind), row, NULL))
    #define sej_new(kind, nothing) (((PyTypeObject *)(kind))->tp_new((PyTypeObject *)(kind), nothing, NULL))
    """
    struct stat_t "stat":
        int64_t st_size
        unsigned long long st_dev
        unsigned long long st_ino
        unsigned long long st_nlink
        unsigned int st_mode

    object new_tuple "sej_new_tuple"(object kind, tuple row)  # of a subclass, without a call of its own __new__
    object new "sej_new"(object kind, tuple nothing)  # without a call of __init__

cdef extern from "Python.h":
    int PyUnicode_FSConverter(object path, PyObject **result) except 0
    int PySys_Audit(const char *event, const char *format, ...) except -1


cdef class Descriptor:
    cdef readonly int _fd
    cdef readonly str _path
    cdef Mutex _mutex
    cdef public object _unsynced

    cdef bytes _part(self, Py_ssize_t size, int64_t position)
    cdef int _write(self, data, int64_t position) except -1
    cdef int _stat(self, stat_t *found) except -1
    cdef bint _flock(self, int kind) except -1
    cdef int _refuse(self, int number, int64_t position=*) except -1


cdef inline bytes encoded(path):
    """Return a path as the system has it."""
    cdef PyObject *found = NULL
    cdef bytes name
    PyUnicode_FSConverter(path, &found)
    name = <bytes> found
    Py_XDECREF(found)
    return name


cdef inline int audit(str path, int flags) except -1:
    """Report that a file is about to be opened, as ``os.open`` does."""
    return PySys_Audit("open", "OOi", <PyObject *> path, <PyObject *> None, flags)
