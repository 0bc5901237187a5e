# cython: language_level=3, boundscheck=False, wraparound=False
"""An open file, and the calls on files that are made most often, compiled.

The reference is ``sej.system.descriptor``. As there, a call that a signal interrupted is repeated after the handlers
have run, unless one of them raises an exception.
"""

from cython cimport binding, boundscheck

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EACCES, EAGAIN, EINTR, EINVAL, EIO, EISDIR, ELOOP, ENOENT, ENOTDIR, ENXIO, errno
from libc.stdint cimport int64_t

from sej._mutex_c cimport Mutex

import os

from sej.system.status import Status

cdef extern from *:
    """
    #include <fcntl.h>
    #include <stdint.h>
    #include <sys/file.h>
    #include <sys/stat.h>
    #include <unistd.h>
    #if defined(__APPLE__)
    #define st_mtim st_mtimespec
    #endif
    #define sej_mtime_ns(found) ((int64_t)(found)->st_mtim.tv_sec * 1000000000 + (found)->st_mtim.tv_nsec)
    """
    int64_t sej_mtime_ns(stat_t *found)
    bint S_ISREG(unsigned int mode)
    bint S_ISDIR(unsigned int mode)
    const int O_NONBLOCK, LOCK_SH, LOCK_EX, LOCK_NB, LOCK_UN
    int c_open "open"(const char *path, int flags, int mode) nogil
    int c_close "close"(int fd) nogil
    int c_fstat "fstat"(int fd, stat_t *found) nogil
    int c_stat "stat"(const char *path, stat_t *found) nogil
    int c_flock "flock"(int fd, int kind) nogil
    ssize_t c_pread "pread"(int fd, void *data, size_t size, int64_t position) nogil
    ssize_t c_write "write"(int fd, const void *data, size_t size) nogil
    ssize_t c_pwrite "pwrite"(int fd, const void *data, size_t size, int64_t position) nogil

cdef Py_ssize_t LIMIT = 1 << 30


cdef class Descriptor:
    """An open file of the operating system."""

    def __cinit__(self):
        self._fd = -1

    def __init__(self, int fd, str path not None):
        """Own the descriptor; -1: a closed file."""
        self._fd = fd
        self._path = path

    def __dealloc__(self):
        cdef int fd = self._fd
        if fd >= 0:
            with nogil:
                c_close(fd)

    @property
    def path(self):
        """The path that was opened."""
        return self._path

    @property
    def _syncing(self):
        """The lock of a sync."""
        if self._mutex is None:
            self._mutex = Mutex.__new__(Mutex)
        return self._mutex

    @binding(False)
    def read(self, Py_ssize_t size, int64_t position):
        """Return up to size bytes from position."""
        if size <= LIMIT:
            return self._part(size, position)
        parts = []
        while size > 0:
            part = self._part(min(size, LIMIT), position)
            if not part:
                break
            parts.append(part)
            size -= len(part)
            position += len(part)
        return b"".join(parts)

    cdef bytes _part(self, Py_ssize_t size, int64_t position):
        if size < 0:
            self._refuse(EINVAL, position)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
        cdef char *start = PyBytes_AS_STRING(data)
        cdef Py_ssize_t done = 0, count
        cdef int fd = self._fd
        while done < size:
            with nogil:
                count = c_pread(fd, start + done, size - done, position + done)
            if count > 0:
                done += count
            elif count == 0:
                return data[:done]
            elif errno == EINTR:
                PyErr_CheckSignals()
            else:
                self._refuse(errno, position)
        return data

    @binding(False)
    def write(self, data):
        """Write everything."""
        self._write(data, -1)

    @binding(False)
    def write_at(self, data, int64_t position):
        """Overwrite everything at position."""
        if position < 0:
            self._refuse(EINVAL)
        self._write(data, position)

    cdef int _write(self, data, int64_t position) except -1:
        """Write everything at position, or at the running position of the file if it is -1."""
        cdef Py_buffer view
        cdef Py_ssize_t done = 0, count, size
        cdef int fd = self._fd
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while True:
                size = min(view.len - done, LIMIT)
                with nogil:
                    if position < 0:
                        count = c_write(fd, <char *> view.buf + done, size)
                    else:
                        count = c_pwrite(fd, <char *> view.buf + done, size, position + done)
                if count < 0:
                    if errno != EINTR:
                        self._refuse(errno)
                    PyErr_CheckSignals()
                    continue
                done += count
                if done == view.len:
                    return 0
                if count == 0:
                    raise OSError(EIO, "write(2) made no progress", self._path)
        finally:
            PyBuffer_Release(&view)

    cdef int _stat(self, stat_t *found) except -1:
        cdef int failed, fd = self._fd
        with nogil:
            failed = c_fstat(fd, found)
        if failed:
            _raise(errno, self._path)
        return 0

    @binding(False)
    def size(self):
        """Return its size in bytes."""
        cdef stat_t found
        self._stat(&found)
        return found.st_size

    @binding(False)
    def extent(self):
        """Return its size in bytes and its number of names."""
        cdef stat_t found
        self._stat(&found)
        return found.st_size, found.st_nlink

    @binding(False)
    def status(self):
        """Return the file's current status."""
        cdef stat_t found
        self._stat(&found)
        return _status(&found)

    @binding(False)
    def lock(self, *, bint exclusive=True, bint wait=False):
        """Lock by ``flock``."""
        return self._flock((LOCK_EX if exclusive else LOCK_SH) | (0 if wait else LOCK_NB))

    @binding(False)
    def unlock(self):
        """Release the lock; closing the file does too."""
        if self._fd >= 0:
            self._flock(LOCK_UN)

    cdef bint _flock(self, int kind) except -1:
        """Return whether the lock was free."""
        cdef int failed, fd = self._fd
        while True:
            with nogil:
                failed = c_flock(fd, kind)
            if not failed:
                return True
            if kind & LOCK_NB and errno in (EAGAIN, EACCES):
                return False
            if errno != EINTR:
                _raise(errno, self._path)
            PyErr_CheckSignals()

    @binding(False)
    def unlocker(self):
        """Return :meth:`unlock`, which is written in C and does nothing after :meth:`close`."""
        return self.unlock

    @binding(False)
    def closing(self):
        """Return an object that closes it, and is written in C."""
        return _Closing(self)

    @binding(False)
    def fileno(self):
        """Return the descriptor; -1 after close."""
        return self._fd

    @binding(False)
    def close(self):
        """Close the file; a second call does nothing."""
        cdef int failed, fd = self._fd
        if fd >= 0:
            self._fd = -1
            with nogil:
                failed = c_close(fd)
            if failed:
                _raise(errno, self._path)

    cdef int _refuse(self, int number, int64_t position=-1) except -1:
        """Raise the system's error with the path."""
        _raise(number, self._path, "" if position < 0 else f", reading at position {position}")


cdef class _Closing:
    """Closes a file at the end of a ``with`` block."""

    cdef Descriptor _file

    def __init__(self, Descriptor file not None):
        self._file = file

    @binding(False)
    def __enter__(self):
        return self._file

    @binding(False)
    def __exit__(self, *_):
        self._file.close()


@binding(False)
def opened(kind, str path not None, int flags):
    """Open a regular file, waiting only for the end of a lease."""
    cdef stat_t found
    return _opened(kind, path, flags, &found)


cdef Descriptor _opened(kind, str path, int flags, stat_t *found):
    cdef bytes name = encoded(path)
    cdef const char *there = name
    cdef int fd, failed = 0, no_wait = O_NONBLOCK
    cdef Descriptor file = new(kind, ())
    file._path = path
    audit(path, flags)
    while True:
        with nogil:
            fd = c_open(there, flags | no_wait, 0o666)
            if fd >= 0:
                failed = c_fstat(fd, found)
        if fd >= 0:
            break
        if errno == EAGAIN and no_wait:  # another process has a lease: it ends soon
            no_wait = 0
        elif errno == EINTR:
            PyErr_CheckSignals()
        else:
            _raise(errno, path)
    file._fd = fd
    if failed:
        _raise(errno, path)
    if not S_ISREG(found.st_mode):
        _raise(EISDIR if S_ISDIR(found.st_mode) else ENXIO, path)
    return file


@binding(False)
def content_of(str path not None, int flags, Py_ssize_t size):
    """Return up to size bytes from the beginning of a regular file."""
    cdef stat_t found
    cdef Descriptor file = _opened(Descriptor, path, flags, &found)
    try:
        return file.read(min(size, found.st_size), 0)
    finally:
        file.close()


@binding(False)
def overwrite(str path not None, int flags, data, int64_t position=0, int64_t size=-1):
    """Overwrite bytes of a regular file, if it has this size; -1: any size."""
    cdef stat_t found
    cdef Descriptor file = _opened(Descriptor, path, flags, &found)
    try:
        if size != -1 and found.st_size != size:
            return False
        if position < 0:
            file._refuse(EINVAL)
        file._write(data, position)
        return True
    finally:
        file.close()


@binding(False)
def status_of(path):
    """Return the status of a path, or None."""
    cdef bytes name = encoded(path)
    cdef const char *there = name
    cdef stat_t found
    cdef int failed
    with nogil:
        failed = c_stat(there, &found)
    if not failed:
        return _status(&found)
    if errno in (ENOENT, ENOTDIR, ELOOP):  # the last: a circular link has no target
        return None
    _raise(errno, path)


@binding(False)
@boundscheck(True)
def is_at(str path not None, tuple identity not None):
    """Return whether a path is the file of a device and inode."""
    cdef bytes name = encoded(path)
    cdef const char *there = name
    cdef stat_t found
    cdef int failed
    with nogil:
        failed = c_stat(there, &found)
    if not failed:
        return found.st_ino == identity[1] and found.st_dev == identity[0]
    if errno in (ENOENT, ENOTDIR, ELOOP):
        return False
    _raise(errno, path)


cdef int _raise(int number, path=None, str where="") except -1:
    """Raise an error of the system."""
    text = os.strerror(number) + where
    raise OSError(number, text) if path is None else OSError(number, text, path)


cdef object _status(stat_t *found):
    cdef bint is_dir = S_ISDIR(found.st_mode)
    return new_tuple(
        Status, ((found.st_size, found.st_dev, found.st_ino, sej_mtime_ns(found), found.st_nlink, is_dir),)
    )
