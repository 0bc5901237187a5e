# cython: language_level=3
"""A reentrant mutex, compiled: what threading.RLock does, which is the reference, at a tenth of the cost in C.

The state is read and written with the interpreter's lock held, so a free mutex is taken without the system's lock. That
one is only for waiting. The first waiter locks it in place of the holder, and then waits for it::

    state        _count  _locked   enter() of another thread
    free         0       False     takes the mutex
    held         1..     False     locks the system's lock, then waits for it
    waited for   1..     True      waits for the system's lock; the last leave() unlocks it
    passed on    0       False     waits too, while _waiting counts a thread that has just got it

Waiting is as in threading.RLock: signal handlers run in the meantime, and their exceptions end it.

The page that shows a fork is the module's, too: see sej.mutex. The kernel fills it with zeros in a forked child. If it
cannot, the byte is always 0, and the pid is compared.
"""

from cython cimport binding

from cpython.exc cimport PyErr_CheckSignals
from cpython.pythread cimport (
    NOWAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
    PyThread_release_lock,
)

import time

cdef extern from "pythread.h":
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE
        PY_LOCK_ACQUIRED
        PY_LOCK_INTR

    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible) nogil

cdef extern from *:
    """
    #include <unistd.h>
    #if defined(__linux__)
    #include <sys/mman.h>
    #ifndef MADV_WIPEONFORK
    #define MADV_WIPEONFORK 18
    #endif
    #endif
    static unsigned char sej_never[1];
    static unsigned char *sej_page(void) {
    #if defined(MADV_WIPEONFORK)
        long size = sysconf(_SC_PAGESIZE);
        void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED && madvise(page, size, MADV_WIPEONFORK) == 0) {
            *(unsigned char *)page = 1;
            return page;
        }
    #endif
        return sej_never;
    }
    """
    unsigned char sej_never[1]
    unsigned char *sej_page()
    int getpid()

cdef int pid = getpid()
cdef object tell = None
page = sej_page()


cdef int in_child() except -1:
    if tell is not None and (page != sej_never or getpid() != pid):
        tell()
    return 0


def noticed(function):
    """Note that this process owns its objects. A forked child calls the function, which calls this."""
    global pid, tell
    pid, tell = getpid(), function
    if page != sej_never:
        page[0] = 1


@binding(False)
def notice_fork():
    """See sej.mutex."""
    check_fork()


cdef class Mutex:
    """Held by one thread at a time, which may take it again."""

    def __dealloc__(self):
        if self._lock != NULL:
            if self._locked:
                PyThread_release_lock(self._lock)
            PyThread_free_lock(self._lock)

    cdef bint owned(self) noexcept:
        """Return whether this thread holds it."""
        return self._count > 0 and self._owner == <unsigned long> PyThread_get_thread_ident()

    cdef int enter(self) except -1:
        """Take it; waits without a limit."""
        cdef unsigned long me = <unsigned long> PyThread_get_thread_ident()
        check_fork()
        if self._count == 0 and self._waiting == 0:
            self._owner = me
            self._count = 1
        elif self._count and self._owner == me:
            self._count += 1
        else:
            self._wait(me, -1)
        return 0

    cdef bint _wait(self, unsigned long me, long long microseconds) except -1:
        """Return whether it was taken in time; -1 waits without a limit."""
        cdef PyLockStatus status
        cdef long long left = microseconds
        cdef double end = 0
        if microseconds > 0:
            end = time.monotonic() + microseconds / 1e6
            if self._count == 0 and self._waiting == 0:  # it became free in that call
                self._owner = me
                self._count = 1
                return True
        if self._lock == NULL:  # most mutexes are never waited for
            self._lock = PyThread_allocate_lock()
            if self._lock == NULL:
                raise MemoryError()
        if not self._locked and self._waiting == 0:
            PyThread_acquire_lock(self._lock, NOWAIT_LOCK)  # no other thread can have it
            self._locked = True
        self._waiting += 1
        try:
            while True:
                with nogil:
                    status = PyThread_acquire_lock_timed(self._lock, left, 1)
                if status == PY_LOCK_ACQUIRED:
                    self._locked = True
                    self._owner = me
                    self._count = 1
                    return True
                if status != PY_LOCK_INTR:
                    return False
                PyErr_CheckSignals()
                if microseconds > 0:
                    left = max(<long long> ((end - time.monotonic()) * 1e6), 0)
        finally:
            self._waiting -= 1

    cdef int leave(self) except -1:
        """Release it once."""
        if not self.owned():
            raise RuntimeError("cannot release a mutex that this thread does not hold")
        self._count -= 1
        if self._count == 0:
            self._owner = 0
            if self._locked:
                self._locked = False
                PyThread_release_lock(self._lock)
        return 0

    @binding(False)
    def acquire(self, blocking=True, timeout=-1):
        """Take it; return whether that succeeded. As threading.RLock."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if self.owned() or (self._count == 0 and self._waiting == 0):
            self.enter()
            return True
        if not blocking or timeout == 0:
            return False
        return self._wait(<unsigned long> PyThread_get_thread_ident(), -1 if timeout == -1 else <long long> (timeout * 1e6))

    @binding(False)
    def release(self):
        """Release it once."""
        self.leave()

    @binding(False)
    def __enter__(self):
        """Take it."""
        self.enter()
        return True

    @binding(False)
    def __exit__(self, *_):
        """Release it once."""
        self.leave()

    @binding(False)
    def _is_owned(self):
        """Return whether this thread holds it, as threading.Condition asks."""
        check_fork()
        return self.owned()
