# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Grouping a batch by shard, compiled: same result and errors as ``_route_py``.

What these loops do not take (a bytearray, a key that is too long) they hand to the reference, so that there is one
wording and one truth.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

from shard import _route_py as _reference

cdef extern from *:
    """
    #include <string.h>
    #include <stdint.h>
    /* XXH64 (Yann Collet's specification), one pass over bytes in memory. */
    #define SEJ_P1 0x9E3779B185EBCA87ULL
    #define SEJ_P2 0xC2B2AE3D27D4EB4FULL
    #define SEJ_P3 0x165667B19E3779F9ULL
    #define SEJ_P4 0x85EBCA77C2B2AE63ULL
    #define SEJ_P5 0x27D4EB2F165667C5ULL
    static inline uint64_t sej_rotl(uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }
    static inline uint64_t sej_le64(const uint8_t *p) {
        uint64_t x; memcpy(&x, p, 8);
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        x = __builtin_bswap64(x);
    #endif
        return x;
    }
    static inline uint32_t sej_le32(const uint8_t *p) {
        uint32_t x; memcpy(&x, p, 4);
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        x = __builtin_bswap32(x);
    #endif
        return x;
    }
    static inline uint64_t sej_round(uint64_t acc, uint64_t lane) {
        return sej_rotl(acc + lane * SEJ_P2, 31) * SEJ_P1;
    }
    static inline uint64_t sej_merge(uint64_t acc, uint64_t v) {
        return (acc ^ sej_round(0, v)) * SEJ_P1 + SEJ_P4;
    }
    static inline uint64_t sej_xxh64(const uint8_t *p, size_t size, uint64_t seed) {
        const uint8_t *end = p + size;
        uint64_t h;
        if (size >= 32) {
            uint64_t a = seed + SEJ_P1 + SEJ_P2, b = seed + SEJ_P2, c = seed, d = seed - SEJ_P1;
            do {
                a = sej_round(a, sej_le64(p)); b = sej_round(b, sej_le64(p + 8));
                c = sej_round(c, sej_le64(p + 16)); d = sej_round(d, sej_le64(p + 24));
                p += 32;
            } while (end - p >= 32);
            h = sej_rotl(a, 1) + sej_rotl(b, 7) + sej_rotl(c, 12) + sej_rotl(d, 18);
            h = sej_merge(h, a); h = sej_merge(h, b); h = sej_merge(h, c); h = sej_merge(h, d);
        } else {
            h = seed + SEJ_P5;
        }
        h += (uint64_t) size;
        while (end - p >= 8) {
            h = sej_rotl(h ^ sej_round(0, sej_le64(p)), 27) * SEJ_P1 + SEJ_P4;
            p += 8;
        }
        if (end - p >= 4) {
            h = sej_rotl(h ^ ((uint64_t) sej_le32(p) * SEJ_P1), 23) * SEJ_P2 + SEJ_P3;
            p += 4;
        }
        while (p < end) h = sej_rotl(h ^ (*p++ * SEJ_P5), 11) * SEJ_P1;
        h ^= h >> 33; h *= SEJ_P2; h ^= h >> 29; h *= SEJ_P3; h ^= h >> 32;
        return h;
    }
    """
    uint64_t sej_xxh64(const uint8_t *p, size_t size, uint64_t seed) nogil

cdef enum:
    MAX_SHARDS = 1024
    MAX_KEY = 127
    MAX_VALUE = 2147483647 - 26 - 127  # below this, no key makes the message too long

cdef uint64_t SEED = 42


def group(values, keys, int bits, indexes, bint places=False):
    """Put a batch into groups by shard, keeping the order within each; see the reference."""
    cdef Py_ssize_t place, count = len(values)
    cdef uint64_t mask, index
    cdef object value, key
    cdef list value_list, key_list, to_values, to_keys, to_places
    cdef dict found = {}
    cdef Py_ssize_t sizes[MAX_SHARDS]
    cdef Py_ssize_t filled[MAX_SHARDS]
    cdef PyObject *lists[3 * MAX_SHARDS]
    cdef uint16_t *shards
    if not 0 <= bits <= 10 or len(keys) != count or values.__class__ is not list or keys.__class__ is not list:
        return _reference.group(values, keys, bits, indexes, places)
    mask = (1 << bits) - 1
    value_list = values
    key_list = keys
    shards = <uint16_t *> PyMem_Malloc(max(count, 1) * sizeof(uint16_t))
    if shards == NULL:
        raise MemoryError
    try:
        memset(sizes, 0, sizeof(sizes))
        for place in range(count):
            value = value_list[place]
            key = key_list[place]
            if (
                not PyBytes_CheckExact(value) or not PyBytes_CheckExact(key)
                or PyBytes_GET_SIZE(key) > MAX_KEY or PyBytes_GET_SIZE(value) > MAX_VALUE
            ):
                return _reference.group(values, keys, bits, indexes, places)
            if indexes is None:
                index = sej_xxh64(<const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), SEED) & mask
            else:
                index = <uint64_t> indexes[place] & mask
            shards[place] = <uint16_t> index
            sizes[index] += 1
        # The lists are made at their full length, which costs less than appending to them; the collector, which may run
        # between, passes over places that are still empty.
        memset(filled, 0, sizeof(filled))
        for place in range(count):
            index = shards[place]
            if filled[index] == 0:
                to_values = PyList_New(sizes[index])
                to_keys = PyList_New(sizes[index])
                to_places = PyList_New(sizes[index] if places else 0)
                found[index] = (to_values, to_keys, to_places)
                lists[3 * index] = <PyObject *> to_values
                lists[3 * index + 1] = <PyObject *> to_keys
                lists[3 * index + 2] = <PyObject *> to_places
            value = value_list[place]
            key = key_list[place]
            Py_INCREF(value)
            PyList_SET_ITEM(<list> lists[3 * index], filled[index], value)
            Py_INCREF(key)
            PyList_SET_ITEM(<list> lists[3 * index + 1], filled[index], key)
            if places:
                value = place
                Py_INCREF(value)
                PyList_SET_ITEM(<list> lists[3 * index + 2], filled[index], value)
            filled[index] += 1
    finally:
        PyMem_Free(shards)
    return found
