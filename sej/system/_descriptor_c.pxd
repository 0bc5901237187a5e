"""The compiled open file, for compiled modules that open files without a call into Python."""

from libc.stdint cimport int64_t

from sej._mutex_c cimport Mutex

cdef extern from *:
    """
    #include <sys/stat.h>
    """
    struct stat_t "stat":
        int64_t st_size
        unsigned long long st_dev
        unsigned long long st_ino
        unsigned long long st_nlink
        unsigned int st_mode


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
