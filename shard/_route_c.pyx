# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Grouping a batch by shard and encoding the parts, compiled: same result and errors as ``_route_py``.

What these loops do not take (a bytearray, a key that is too long) they hand to the reference, so that there is one
wording and one truth.
"""

from cython cimport binding

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.list cimport PyList_CheckExact, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from sej._mutex_c cimport Mutex, give, take
from sej.codec._buffer_c cimport Buffer
from sej.codec._layout cimport (
    MAX_KEY, MAX_TYPE, MAX_VALUE, OVERHEAD, Py_SIZE, PyList_GET_ITEM, fits, now_ns, put_message, raw_bytes,
)

from sej.codec.arguments import full
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
    /* FNV-1a in 32 bits, folded to 16, as the original's example has it. */
    static inline uint64_t sej_fnv(const uint8_t *p, size_t size) {
        uint32_t h = 0x811C9DC5u;
        for (const uint8_t *end = p + size; p < end; p++) h = (h ^ *p) * 0x01000193u;
        return (h >> 16) ^ (h & 0xFFFFu);
    }
    /* The same for four keys of one size: a step waits for the step before it, but not for those of other keys. */
    static inline void sej_fnv_four(const uint8_t **key, size_t size, uint64_t *found) {
        uint32_t a = 0x811C9DC5u, b = a, c = a, d = a;
        for (size_t i = 0; i < size; i++) {
            a = (a ^ key[0][i]) * 0x01000193u;
            b = (b ^ key[1][i]) * 0x01000193u;
            c = (c ^ key[2][i]) * 0x01000193u;
            d = (d ^ key[3][i]) * 0x01000193u;
        }
        found[0] = (a >> 16) ^ (a & 0xFFFFu);
        found[1] = (b >> 16) ^ (b & 0xFFFFu);
        found[2] = (c >> 16) ^ (c & 0xFFFFu);
        found[3] = (d >> 16) ^ (d & 0xFFFFu);
    }
    static inline uint64_t sej_hash(int fnv, const uint8_t *p, size_t size) {
        return fnv ? sej_fnv(p, size) : sej_xxh64(p, size, 42);
    }
    """
    uint64_t sej_hash(int fnv, const uint8_t *p, size_t size) nogil
    void sej_fnv_four(const uint8_t **key, size_t size, uint64_t *found) nogil

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1

cdef enum:
    MAX_SHARDS = 1024


def fnv(key):
    """FNV-1a of the key in 32 bits, folded to 16; see the reference."""
    cdef const uint8_t[:] view
    if PyBytes_CheckExact(key):
        return sej_hash(True, <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
    view = key
    return sej_hash(True, &view[0], view.shape[0]) if view.shape[0] else sej_hash(True, NULL, 0)


def group(values, keys, int bits, indexes, bint places=False, name="xxh64"):
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
    cdef bint fnv = name == "fnv"
    if not 0 <= bits <= 10 or len(keys) != count or values.__class__ is not list or keys.__class__ is not list:
        return _reference.group(values, keys, bits, indexes, places, name)
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
                return _reference.group(values, keys, bits, indexes, places, name)
            if indexes is None:
                index = sej_hash(fnv, <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & mask
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


cdef void route(PyObject *keys, Py_ssize_t count, bint fnv, uint64_t mask, uint16_t *shards) noexcept:
    """Write the shard of each key, all of which are bytes."""
    cdef const uint8_t *four[4]
    cdef uint64_t found[4]
    cdef Py_ssize_t place = 0, size, at
    cdef PyObject *key
    while place < count:
        key = PyList_GET_ITEM(keys, place)
        size = Py_SIZE(key)
        at = 0
        if fnv and place + 4 <= count:
            while at < 4 and Py_SIZE(PyList_GET_ITEM(keys, place + at)) == size:
                four[at] = <const uint8_t *> raw_bytes(PyList_GET_ITEM(keys, place + at))
                at += 1
        if at == 4:
            sej_fnv_four(four, size, found)
            for at in range(4):
                shards[place + at] = <uint16_t> (found[at] & mask)
            place += 4
        else:
            shards[place] = <uint16_t> (sej_hash(fnv, <const uint8_t *> raw_bytes(key), size) & mask)
            place += 1


cdef class Parts:
    """A batch that was sorted by shard and is encoded part by part; see the reference."""
    cdef readonly list indexes
    cdef list _values
    cdef list _keys
    cdef list _types
    cdef list _times
    cdef int64_t _type
    cdef int64_t _time
    cdef Py_ssize_t *_places
    cdef Py_ssize_t _starts[MAX_SHARDS + 1]
    cdef int _shards

    def __init__(self, values, keys, int bits, indexes, types, times, name="xxh64"):
        cdef Py_ssize_t place, count
        cdef Py_ssize_t sizes[MAX_SHARDS]
        cdef Py_ssize_t many
        cdef uint64_t mask, index
        cdef PyObject *value
        cdef PyObject *key
        cdef uint16_t *shards
        cdef list index_list
        cdef bint fnv = name == "fnv"
        if not 0 <= bits <= 10:
            raise ValueError(f"bits must be 0 to 10, got {bits}")
        if self._places != NULL:
            raise RuntimeError("the parts were already created")
        self._values = list(values)  # ours: while a part is written, others may run
        count = len(self._values)
        self._keys = list(keys)
        self._types = None if isinstance(types, int) else list(types)
        self._times = None if isinstance(times, int) else list(times)
        index_list = None if indexes is None else list(indexes)
        _reference.check_counts(count, self._keys, self._types, self._times, index_list)
        self.indexes = []
        self._shards = many = 1 << bits
        mask = many - 1
        memset(sizes, 0, many * sizeof(Py_ssize_t))
        shards = <uint16_t *> PyMem_Malloc(max(count, 1) * sizeof(uint16_t))
        self._places = <Py_ssize_t *> PyMem_Malloc(max(count, 1) * sizeof(Py_ssize_t))
        try:
            if shards == NULL or self._places == NULL:
                raise MemoryError
            for place in range(count):
                value = PyList_GET_ITEM(<PyObject *> self._values, place)
                key = PyList_GET_ITEM(<PyObject *> self._keys, place)
                if not fits(value, MAX_VALUE) or not fits(key, MAX_KEY):
                    self._values[place], self._keys[place] = _reference.check_message(
                        place, <object> value, <object> key
                    )
                    value = PyList_GET_ITEM(<PyObject *> self._values, place)
                    key = PyList_GET_ITEM(<PyObject *> self._keys, place)
            if index_list is None:
                route(<PyObject *> self._keys, count, fnv, mask, shards)
            else:
                for place in range(count):
                    shards[place] = <uint16_t> (<uint64_t> index_list[place] & mask)
            for place in range(count):
                index = shards[place]
                if sizes[index] == 0:
                    self.indexes.append(index)
                sizes[index] += 1
            if self._types is None:
                self._type = number(0, "type", types, 0, MAX_TYPE)
            else:
                for place in range(count):
                    number(place, "type", self._types[place], 0, MAX_TYPE)
            if self._times is None:
                self._time = number(0, "timestamp", times, INT64_MIN, INT64_MAX)
            else:
                for place in range(count):
                    number(place, "timestamp", self._times[place], INT64_MIN, INT64_MAX)
            self._starts[0] = 0
            for place in range(many):
                self._starts[place + 1] = self._starts[place] + sizes[place]
            memcpy(sizes, self._starts, many * sizeof(Py_ssize_t))
            for place in range(count):
                index = shards[place]
                self._places[sizes[index]] = place
                sizes[index] += 1
        finally:
            PyMem_Free(shards)

    def __dealloc__(self):
        PyMem_Free(self._places)

    def count(self, int index):
        """How many messages a shard gets."""
        if not 0 <= index < self._shards:
            raise IndexError(index)
        return self._starts[index + 1] - self._starts[index]

    def pour(self, int index, Buffer buffer not None):
        """Encode a shard's part into a writer's buffer; see the reference."""
        return self.encode(index, buffer)

    cdef object encode(self, int index, Buffer buffer):
        """Do it, for a caller in C."""
        cdef Py_ssize_t at, place
        cdef int64_t first = buffer.offset, kind = self._type, time = self._time
        cdef PyObject *values = <PyObject *> self._values
        cdef PyObject *keys = <PyObject *> self._keys
        cdef bint own_types = self._types is not None, own_times = self._times is not None
        if not 0 <= index < self._shards:
            raise IndexError(index)
        if first > INT64_MAX - (self._starts[index + 1] - self._starts[index]):
            raise full()
        for at in range(self._starts[index], self._starts[index + 1]):
            place = self._places[at]
            if own_types:
                kind = self._types[place]
            if own_times:
                time = self._times[place]
            buffer._put(PyList_GET_ITEM(values, place), PyList_GET_ITEM(keys, place), kind, time)
            if buffer._used - buffer._drained >= buffer.batch_limit:
                buffer._run_drain()
        return range(first, buffer.offset)


cdef object pour_alone(Parts parts, int index, Buffer buffer):
    """Pour a part into a buffer that no other call uses, and write it. None: the owner of the buffer has to do it."""
    cdef Mutex mutex = buffer._mutex
    if mutex is None or buffer._busy or mutex.owned():
        return None
    take(mutex)
    try:
        if buffer._busy:  # it failed or was closed while this thread waited
            return None
        buffer._busy = True
        try:
            span = parts.encode(index, buffer)
            if buffer._used - buffer._drained >= buffer.limit:
                buffer._run_drain()
        finally:
            buffer._busy = buffer._refuse is not None or buffer._writing
    finally:
        give(mutex)
    return span


cdef struct Share:
    # What one shard gets of a batch.
    uint16_t shard
    int64_t messages
    int64_t size
    int64_t offset
    unsigned char *end


cdef class Batch:
    """A batch on its way to open shards. It uses the lists of the caller, who cannot change them meanwhile.

    Between the checks and the last encoded message no Python code runs, and none is started by an allocation. So it
    needs neither copies nor locks until it writes: all is as if the messages were appended one by one.
    """
    cdef PyObject *values
    cdef PyObject *keys
    cdef Py_ssize_t count
    cdef uint16_t *places  # for each message, its share
    cdef Share *shares  # by their first messages
    cdef uint16_t *share_of  # for each shard, 1 + its share
    cdef int concerned
    cdef list buffers  # of the shares
    cdef dict appended

    def __cinit__(self, list values, list keys, Py_ssize_t shards):
        self.buffers = []
        self.appended = {}  # from here on no collector runs, whose finalizers could change the lists
        self.values, self.keys = <PyObject *> values, <PyObject *> keys
        self.count = len(values)
        self.shares = <Share *> PyMem_Malloc(
            shards * (sizeof(Share) + sizeof(uint16_t)) + self.count * sizeof(uint16_t)
        )
        if self.shares == NULL:
            raise MemoryError
        self.share_of = <uint16_t *> (self.shares + shards)
        self.places = self.share_of + shards
        memset(self.share_of, 0, shards * sizeof(uint16_t))

    def __dealloc__(self):
        PyMem_Free(self.shares)

    cdef bint sort(self, bint fnv, uint64_t mask) noexcept:
        """Count what each shard gets. Return whether all messages are valid."""
        cdef Py_ssize_t place
        cdef uint16_t *share_of
        cdef Share *share
        cdef PyObject *value
        cdef PyObject *key
        for place in range(self.count):
            value, key = PyList_GET_ITEM(self.values, place), PyList_GET_ITEM(self.keys, place)
            if not fits(value, MAX_VALUE) or not fits(key, MAX_KEY):
                return False
        route(self.keys, self.count, fnv, mask, self.places)
        for place in range(self.count):
            share_of = self.share_of + self.places[place]
            if share_of[0] == 0:
                share = self.shares + self.concerned
                share.shard = self.places[place]
                share.messages = share.size = 0
                self.concerned += 1
                share_of[0] = <uint16_t> self.concerned
            self.places[place] = share_of[0] - 1
            share = self.shares + self.places[place]
            share.messages += 1
            value, key = PyList_GET_ITEM(self.values, place), PyList_GET_ITEM(self.keys, place)
            share.size += OVERHEAD + Py_SIZE(key) + Py_SIZE(value)
        return True

    cdef bint reserve(self, list buffers) except -1:
        """Make room. Return whether each shard is open, used by no other call, and written once at most."""
        cdef Share *share
        cdef Buffer buffer
        cdef object found
        cdef int at
        for at in range(self.concerned):
            share = self.shares + at
            found = buffers[share.shard]
            if found is None:
                return False
            buffer = <Buffer> found
            if (
                buffer._busy or buffer._used - buffer._drained + share.size >= buffer.batch_limit
                or buffer.offset > INT64_MAX - share.messages
            ):
                return False
            buffer._reserve(share.size)
            self.buffers.append(buffer)
            share.offset = buffer.offset
            share.end = buffer._data + buffer._used
        return True

    cdef void encode(self, int64_t kind, int64_t time) noexcept:
        """Encode all messages."""
        cdef Py_ssize_t place
        cdef Share *share
        cdef PyObject *value
        cdef PyObject *key
        cdef int at
        for place in range(self.count):
            value, key = PyList_GET_ITEM(self.values, place), PyList_GET_ITEM(self.keys, place)
            share = self.shares + self.places[place]
            share.end = put_message(share.end, share.offset, time, kind, key, value)
            share.offset += 1
        for at in range(self.concerned):
            share = self.shares + at
            (<Buffer> PyList_GET_ITEM(<PyObject *> self.buffers, at))._count(share.messages, share.size, time)

    cdef int drain(self, dict errors) except -1:
        """Write what has to be written, to all shards even if one fails."""
        cdef BaseException interrupt = None
        cdef Buffer buffer
        cdef Share *share
        cdef int at
        for at in range(self.concerned):
            share = self.shares + at
            buffer = <Buffer> self.buffers[at]
            try:
                if buffer._used - buffer._drained >= buffer.limit:
                    buffer._drain_alone()
                self.appended[share.shard] = range(share.offset - share.messages, share.offset)
            except Exception as error:
                errors[share.shard] = error
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt
        return 0


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
            index = sej_hash(self._fnv, <const uint8_t *> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) & self._mask
            buffer = self._buffers[index]
            if buffer is not None and not self._under_way():
                return index, (<Buffer> buffer).append_one(value, key, type, timestamp)
        return self._owner(value, key, type, timestamp)

    def append_many(self, values, keys, type, timestamp, dict errors not None):
        """Append a batch, if that takes nothing but the buffers of open shards; see the reference."""
        cdef Batch batch
        cdef int64_t kind, time
        if (
            not PyList_CheckExact(values) or not PyList_CheckExact(keys) or not PyLong_CheckExact(type)
            or timestamp is not None and not PyLong_CheckExact(timestamp) or self._under_way()
        ):
            return None
        batch = Batch(values, keys, self._mask + 1)
        if not batch.count or len(<list> keys) != batch.count or not batch.sort(self._fnv, self._mask):
            return None  # an empty one needs no shard, but only the owner knows whether it is closed
        kind = number(0, "type", type, 0, MAX_TYPE)
        time = now_ns() if timestamp is None else number(0, "timestamp", timestamp, INT64_MIN, INT64_MAX)
        if not batch.reserve(self._buffers):
            return None
        batch.encode(kind, time)
        batch.drain(errors)
        return batch.appended

    def pour(self, Parts parts not None, dict appended not None, dict errors not None):
        """Append the parts of the open shards, and leave the others to the owner; see the reference."""
        cdef object buffer, span
        cdef int index
        if self._under_way():
            return
        for index in parts.indexes:
            if not 0 <= index <= <int> self._mask:
                raise IndexError(index)
            buffer = self._buffers[index]
            if buffer is None:
                continue
            try:
                span = pour_alone(parts, index, <Buffer> buffer)
                if span is not None:
                    appended[index] = span
            except Exception as error:
                errors[index] = error


cdef int64_t number(Py_ssize_t place, str name, object value, int64_t low, int64_t high) except? -1:
    cdef int overflow = 0
    cdef int64_t found = 0
    if PyLong_CheckExact(value):
        found = PyLong_AsLongLongAndOverflow(value, &overflow)
        if not overflow and low <= found <= high:
            return found
    return _reference.check_number(place, name, value, low, high)
