# cython: nonecheck=True
"""The compiled appends, for the compiled modules of both formats."""

from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t

from sej.codec._layout cimport alone

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <time.h>
    static inline int32_t kestrel_get32(const uint8_t *p) {
        return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    }
    static inline int64_t kestrel_get64(const uint8_t *p) {
        return (int64_t)((uint64_t)(uint32_t)kestrel_get32(p) | (uint64_t)(uint32_t)kestrel_get32(p + 4) << 32);
    }
    static inline void kestrel_put32(uint8_t *p, int32_t x) {
        for (int i = 0; i < 4; i++) p[i] = (uint8_t)((uint32_t)x >> 8 * i);
    }
    static inline void kestrel_put64(uint8_t *p, int64_t x) {
        for (int i = 0; i < 8; i++) p[i] = (uint8_t)((uint64_t)x >> 8 * i);
    }
    static inline int64_t kestrel_tick(void) {
        struct timespec now;
    #if defined(CLOCK_MONOTONIC_COARSE)
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    #else
        clock_gettime(CLOCK_MONOTONIC, &now);
    #endif
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    static inline int64_t kestrel_wall(void) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    }
    static inline PyObject *kestrel_tuple(PyTypeObject *type, Py_ssize_t size) {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, type, size);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) made->ob_hash = -1;  /* tuples remember their hash: not computed yet */
    #endif
        return (PyObject *)made;
    }
    #define kestrel_decref(x) Py_DECREF(x)
    #if defined(_WIN32)
    #include <io.h>
    #define kestrel_write(fd, data, size) _write(fd, data, (unsigned int)(size))
    #else
    #include <unistd.h>
    #define kestrel_write(fd, data, size) write(fd, data, size)
    #endif
    """
    Py_ssize_t raw_write "kestrel_write"(int fd, const void *data, size_t size) nogil
    int32_t get32 "kestrel_get32"(const uint8_t *p) nogil
    int64_t get64 "kestrel_get64"(const uint8_t *p) nogil
    void put32 "kestrel_put32"(uint8_t *p, int32_t x) nogil
    void put64 "kestrel_put64"(uint8_t *p, int64_t x) nogil
    int64_t coarse_ns "kestrel_tick"() nogil
    int64_t wall_ms "kestrel_wall"() nogil


cdef enum:
    CHECK_NS = 100_000_000


cdef class Fuse:
    cdef public bint live
    cdef public bint shut
    cdef readonly str path
    cdef public object blown
    cdef object __weakref__


cdef class Entry:
    cdef public int64_t size


cdef class Output:
    cdef readonly bint aimed
    cdef object _write
    cdef object _rest
    cdef int _descriptor

    cdef int put(self, const void *data, Py_ssize_t size) except -1
    cdef int finish(self, const void *data, Py_ssize_t size, Py_ssize_t done, int failure) except -1


cdef class Appender:
    cdef readonly Fuse fuse
    cdef readonly Output output
    cdef public Entry entry
    cdef readonly bint active
    cdef object _check_lock
    cdef object _by_policy
    cdef public int64_t _checked_ns
    cdef int64_t tick  # of the last call of ready

    cdef int add(self, const void *data, Py_ssize_t size, bint midway) except -1
    cdef int finish(self, const void *data, Py_ssize_t size, Py_ssize_t done, int failure) except -1
    cdef int ready(self) except -1


cdef class Log:
    cdef readonly Fuse fuse
    cdef readonly Output output
    cdef public int64_t grown
    cdef public bint unsynced
    cdef public int64_t enough

    cdef int add(self, const void *record, Py_ssize_t size) except -1
    cdef int finish(self, const void *record, Py_ssize_t size, Py_ssize_t done, int failure) except -1


cdef inline int check(Appender appender) except -1:
    """Do what ready does, without a call as long as there is nothing to find out."""
    cdef int64_t tick = coarse_ns()
    if appender.fuse.live and 0 <= tick - appender._checked_ns < CHECK_NS:
        appender.tick = tick
        return 0
    return appender.ready()


cdef inline int append(Appender appender, const void *data, Py_ssize_t size) except -1:
    """Do what add does, without a call but the write as long as there is nothing else to do."""
    cdef Fuse fuse = appender.fuse
    cdef Output output = appender.output
    cdef Py_ssize_t done
    if (
        fuse.live
        and not appender.active
        and output._descriptor >= 0
        and 0 <= coarse_ns() - appender._checked_ns < CHECK_NS
        and alone()
    ):
        fuse.live = False
        done = raw_write(output._descriptor, data, size)
        if done != size:
            appender.finish(data, size, done, errno)
        appender.entry.size += size
        return 0
    return appender.add(data, size, False)


cdef inline int append_record(Log log, const void *record, Py_ssize_t size) except -1:
    """Do what add does, without a call but the write as long as there is nothing else to do."""
    cdef Output output = log.output
    cdef Py_ssize_t done
    if log.fuse.live and output._descriptor >= 0 and alone():
        done = raw_write(output._descriptor, record, size)
        if done != size:
            log.finish(record, size, done, errno)
        log.grown += size
        log.unsynced = True
        return 0
    return log.add(record, size)
