# cython: nonecheck=True
"""The compiled mutex, for the compiled modules that take it without a call into Python."""

from cpython.pythread cimport PyThread_get_thread_ident, PyThread_type_lock

cdef extern from *:
    """
    /* Whether this thread is the only one of the interpreter. Then a short call of the system need not release the
       interpreter's lock, which saves 390 instructions. A thread that starts meanwhile waits until the call ends. */
    static inline int sej_alone(void) {
    #if defined(PYPY_VERSION)
        return 0;
    #else
        PyThreadState *me = PyThreadState_Get();
        return PyInterpreterState_ThreadHead(PyThreadState_GetInterpreter(me)) == me && PyThreadState_Next(me) == NULL;
    #endif
    }
    """
    bint alone "sej_alone"()


cdef unsigned char *page  # its first byte is 0 in a forked child that does not know it yet


cdef int in_child() except -1


cdef inline bint is_forked() noexcept:
    """Whether this may be such a child: then the caller calls check_fork, and looks at its object after that."""
    return page[0] == 0


cdef inline int check_fork() except -1:
    """What sej.mutex.notice_fork does."""
    return in_child() if is_forked() else 0


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


cdef inline int take(Mutex mutex) except -1:
    """Take it, without a call if it is free."""
    check_fork()
    if mutex._count == 0 and mutex._waiting == 0:
        mutex._owner = <unsigned long> PyThread_get_thread_ident()
        mutex._count = 1
        return 0
    return mutex.enter()


cdef inline int give(Mutex mutex) except -1:
    """Release it once. The caller has taken it."""
    if mutex._count == 1 and not mutex._locked:
        mutex._count = mutex._owner = 0
        return 0
    return mutex.leave()
