# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=True
"""What both formats do at every append, compiled: the same as ``reference``, which explains it.

A file of the system is written without a call into Python. So between two of its bytecodes an operation has happened as
a whole or not at all.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t

from sej.codec._layout cimport alone

import os
from functools import partial

from kestrel.hot import reference as _reference
from sej.errors import ClosedError, LockLostError
from sej.mutex import watch_forks

def tick_ns():
    """Return a clock that only ever runs forward, in ns; what it says is up to 4 ms old."""
    return coarse_ns()


cdef class Fuse:
    """Refuses calls after the first failure, and so on; see the reference."""

    def __init__(self, str path not None):
        self.path = path
        watch_forks(self)

    require_open = _reference.Fuse.require_open
    refuse = _reference.Fuse.refuse
    blow = _reference.Fuse.blow
    _after_fork = _reference.Fuse._after_fork


cdef class Entry:
    """A file in the queue's list; see the reference."""

    def __init__(self, int64_t size):
        self.size = size


cdef class Output:
    """Writes at the end of one open file; see the reference."""

    def __cinit__(self):
        self._descriptor = -1

    def aim(self, file):
        """Write to this file from now on; None: to none."""
        self._descriptor = -1
        self.aimed = file is not None
        self._write = None if file is None else file.writer()
        self._rest = None if file is None else file.write
        if isinstance(self._write, partial) and self._write.func is os.write:
            self._descriptor = self._write.args[0]  # the same call without Python around it

    cdef int put(self, const void *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t done
        cdef int failure = 0
        if self._descriptor < 0:
            done = self._write(PyBytes_FromStringAndSize(<const char *> data, size))
        elif alone():
            done = raw_write(self._descriptor, data, size)
            failure = errno
        else:
            with nogil:
                done = raw_write(self._descriptor, data, size)
                failure = errno
        return 0 if done == size else self.finish(data, size, done, failure)

    cdef int finish(self, const void *data, Py_ssize_t size, Py_ssize_t done, int failure) except -1:
        """Continue after a write that did not write all of it."""
        if done >= 0:
            self._rest(PyBytes_FromStringAndSize(<const char *> data + done, size - done))
            return 0
        if failure != EINTR:
            raise OSError(failure, os.strerror(failure))
        PyErr_CheckSignals()
        return self.put(data, size)

    def out(self, bytes data not None):
        """Write all of it."""
        self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef class Appender:
    """Appends to the newest file of a queue; see the reference."""

    def __init__(self, Fuse fuse not None, *, check_lock, by_policy=None):
        self.fuse = fuse
        self.output = Output()
        self.entry = Entry(0)
        self.active = by_policy is not None
        self._check_lock = check_lock
        self._by_policy = by_policy

    cdef int add(self, const void *data, Py_ssize_t size, bint midway) except -1:
        cdef Fuse fuse = self.fuse
        cdef int64_t tick
        if not fuse.live and not midway:
            fuse.refuse()
        fuse.live = False
        try:
            tick = coarse_ns()
            if not 0 <= tick - self._checked_ns < CHECK_NS:
                self._check_lock()
                self._checked_ns = tick
            self.output.put(data, size)
            self.entry.size += size
            if self.active:
                self._by_policy()
        except (OSError, LockLostError, ClosedError) as error:
            fuse.blow(error)
        return 0

    cdef int finish(self, const void *data, Py_ssize_t size, Py_ssize_t done, int failure) except -1:
        """Continue after a write that did not write all of it."""
        try:
            self.output.finish(data, size, done, failure)
        except (OSError, LockLostError, ClosedError) as error:
            self.fuse.blow(error)
        return 0

    cdef int ready(self) except -1:
        cdef Fuse fuse = self.fuse
        if not fuse.live:
            fuse.refuse()
        self.tick = coarse_ns()
        if not 0 <= self.tick - self._checked_ns < CHECK_NS:
            try:
                self._check_lock()
            except (OSError, LockLostError, ClosedError) as error:
                fuse.blow(error)
            self._checked_ns = self.tick
        return 0

    def append(self, bytes data not None, *, bint midway=False):
        """Write at the end of the file, and sync by the policy."""
        self.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), midway)

    def check(self):
        """Make sure that an operation may begin."""
        self.ready()


cdef class Log:
    """Appends to a log that may repeat what it has; see the reference."""

    def __init__(self, Fuse fuse not None, int64_t enough):
        self.fuse = fuse
        self.output = Output()
        self.enough = enough

    cdef int add(self, const void *record, Py_ssize_t size) except -1:
        cdef Fuse fuse = self.fuse
        if not fuse.live or not self.output.aimed:
            fuse.refuse()
        try:
            self.output.put(record, size)
        except OSError as error:
            fuse.blow(error)
        self.grown += size
        self.unsynced = True
        return 0

    cdef int finish(self, const void *record, Py_ssize_t size, Py_ssize_t done, int failure) except -1:
        """Continue after a write that did not write all of it."""
        try:
            self.output.finish(record, size, done, failure)
        except OSError as error:
            self.fuse.blow(error)
        return 0

    def append(self, bytes record not None):
        """Write one record."""
        self.add(PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record))
