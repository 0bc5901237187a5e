"""What the compiled modules share: byte order, clocks, and the layout of a message as :mod:`sej.codec.format` has it."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #include <time.h>
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define SEJ_BE32(x) (x)
    #define SEJ_BE64(x) (x)
    #else
    #define SEJ_BE32(x) __builtin_bswap32(x)
    #define SEJ_BE64(x) __builtin_bswap64(x)
    #endif
    static inline uint32_t sej_get32(const unsigned char *p) { uint32_t x; memcpy(&x, p, 4); return SEJ_BE32(x); }
    static inline uint64_t sej_get64(const unsigned char *p) { uint64_t x; memcpy(&x, p, 8); return SEJ_BE64(x); }
    static inline void sej_put32(unsigned char *p, uint32_t x) { x = SEJ_BE32(x); memcpy(p, &x, 4); }
    static inline void sej_put64(unsigned char *p, uint64_t x) { x = SEJ_BE64(x); memcpy(p, &x, 8); }
    static inline int64_t sej_coarse(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    static inline int64_t sej_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    /* Most keys are short: two moves that overlap take less than a call. */
    static inline void sej_copy_key(unsigned char *to, const unsigned char *from, size_t size) {
        if (size - 8 <= 8) {
            uint64_t head, tail;
            memcpy(&head, from, 8); memcpy(&tail, from + size - 8, 8);
            memcpy(to, &head, 8); memcpy(to + size - 8, &tail, 8);
        } else if (size > 16) {
            memcpy(to, from, size);
        } else {
            for (size_t at = 0; at < size; at++) to[at] = from[at];
        }
    }
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
    #define sej_bytes(value) PyBytes_AS_STRING((PyObject *)(value))
    #define sej_is_bytes(value) PyBytes_CheckExact((PyObject *)(value))
    """
    uint32_t get32 "sej_get32"(const unsigned char *p) nogil
    uint64_t get64 "sej_get64"(const unsigned char *p) nogil
    void put32 "sej_put32"(unsigned char *p, uint32_t x) nogil
    void put64 "sej_put64"(unsigned char *p, uint64_t x) nogil
    int64_t now_ns "sej_now"() nogil
    int64_t coarse_ns "sej_coarse"() nogil
    bint alone "sej_alone"()
    void copy_key "sej_copy_key"(unsigned char *to, const unsigned char *source, size_t size) nogil
    char *raw_bytes "sej_bytes"(PyObject *value)  # of a borrowed object: nothing is counted on the way
    bint raw_is_bytes "sej_is_bytes"(PyObject *value)

cdef extern from "Python.h":
    Py_ssize_t Py_SIZE(PyObject *value)
    PyObject *PyList_GET_ITEM(PyObject *values, Py_ssize_t index)  # borrowed: nothing is counted on the way

cdef enum:
    HEAD = 18  # offset, timestamp, type, key size
    OVERHEAD = 26
    MAX_KEY = 127
    MAX_TYPE = 255
    MAX_SIZE = 2147483647
    MAX_VALUE = 2147483647 - 26 - 127  # below this, no key makes the message too long


cdef inline bint fits(PyObject *value, int64_t most) noexcept:
    """Whether these are bytes, and no more than that."""
    return raw_is_bytes(value) and Py_SIZE(value) <= most


cdef inline unsigned char *put_message(
    unsigned char *p, int64_t offset, int64_t time, int64_t kind, PyObject *key, PyObject *value
) noexcept:
    """Encode exact bytes that were checked; return the end of the message."""
    cdef Py_ssize_t key_size = Py_SIZE(key), value_size = Py_SIZE(value)
    put64(p, <uint64_t> offset)
    put64(p + 8, <uint64_t> time)
    p[16] = <unsigned char> kind
    p[17] = <unsigned char> key_size
    copy_key(p + HEAD, <unsigned char *> raw_bytes(key), key_size)
    p += HEAD + key_size
    put32(p, <uint32_t> value_size)
    memcpy(p + 4, raw_bytes(value), value_size)
    p += 4 + value_size
    put32(p, <uint32_t> (OVERHEAD + key_size + value_size))
    return p + 4


cdef inline int64_t whole(const unsigned char *p, int64_t room) noexcept nogil:
    """The size of the well-formed message at p, or 0: not all there, or none."""
    cdef int64_t key, size
    if room < OVERHEAD:
        return 0
    key = <signed char> p[17]
    if key < 0 or room < OVERHEAD + key:
        return 0
    size = <int32_t> get32(p + HEAD + key)
    if size < 0:
        return 0
    size += OVERHEAD + key
    if size > room or size > MAX_SIZE or <int32_t> get32(p + size - 4) != size:
        return 0
    return size
