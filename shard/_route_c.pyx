# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Hashing keys and grouping a batch by shard, compiled: same result as ``shard.routing``.

What :func:`group` does not take (a bytearray, a key that is too long) is for the reference: it returns None.
"""

from cython cimport binding

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t

from sej.codec._codec_c cimport Buffer
from sej.codec._layout cimport MAX_KEY, MAX_VALUE

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
    /* FNV-1a in 32 bits, folded to 16, as the original's example has it. */
    static inline uint64_t sej_fnv(const uint8_t *p, size_t size) {
        uint32_t h = 0x811C9DC5u;
        for (const uint8_t *end = p + size; p < end; p++) h = (h ^ *p) * 0x01000193u;
        return (h >> 16) ^ (h & 0xFFFFu);
    }
    static inline uint64_t sej_hash(int fnv, const uint8_t *p, size_t size) {
        return fnv ? sej_fnv(p, size) : sej_xxh64(p, size, 42);
    }
    """
    uint64_t sej_hash(int fnv, const uint8_t *p, size_t size) nogil


cdef inline uint64_t hash_of(bint fnv, object key):
    return sej_hash(fnv, <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))


def group(values, keys, int bits, indexes, bint places=False, name="xxh64"):
    """Group a batch by shard, keeping the order within each; see the reference."""
    cdef Py_ssize_t place, count = len(values)
    cdef uint64_t index, mask
    cdef object value, key
    cdef list groups, value_list, key_list
    cdef tuple parts
    cdef dict found = {}
    cdef bint fnv = name == "fnv"
    if not 0 <= bits <= 10 or len(keys) != count or values.__class__ is not list or keys.__class__ is not list:
        return None
    mask = (1 << bits) - 1
    value_list, key_list, groups = values, keys, [None] * <Py_ssize_t> (mask + 1)
    for place in range(count):
        value, key = value_list[place], key_list[place]
        if (
            not PyBytes_CheckExact(value) or not PyBytes_CheckExact(key)
            or PyBytes_GET_SIZE(key) > MAX_KEY or PyBytes_GET_SIZE(value) > MAX_VALUE
        ):
            return None
        index = hash_of(fnv, key) if indexes is None else <uint64_t> indexes[place]
        index &= mask
        parts = groups[index]
        if parts is None:
            groups[index] = found[index] = parts = ([], [], [])
        (<list> parts[0]).append(value)
        (<list> parts[1]).append(key)
        if places:
            (<list> parts[2]).append(place)
    return found


cdef class Appender:
    """Appends to the shards that are open; see the reference."""
    cdef list _buffers
    cdef uint64_t _mask
    cdef bint _fnv
    cdef object _owner
    cdef object _under_way

    def __init__(self, int bits, name, owner, under_way):
        if not 0 <= bits <= 10:
            raise ValueError(f"bits must be 0 to 10, got {bits}")
        self._mask = (1 << bits) - 1
        self._fnv = name == "fnv"
        self._owner = owner
        self._under_way = under_way
        self.forget()

    def open(self, int index, Buffer buffer not None):
        """Append to this buffer from now on."""
        if not 0 <= index <= <int> self._mask:
            raise IndexError(index)
        self._buffers[index] = buffer

    def forget(self):
        """Leave everything to the owner again."""
        self._buffers = [None] * <int> (self._mask + 1)

    @binding(False)  # a builtin method, which the interpreter calls faster
    def append(self, value, key=b"", type=0, timestamp=None):
        """Append one message; see the reference."""
        cdef uint64_t index
        cdef object buffer
        if PyBytes_CheckExact(key):
            index = hash_of(self._fnv, key) & self._mask
            buffer = self._buffers[index]
            if buffer is not None and not self._under_way():
                return index, (<Buffer> buffer).append_one(value, key, type, timestamp, None)
        return self._owner(value, key, type, timestamp)
