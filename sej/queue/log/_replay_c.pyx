# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot half of a queue's state log, compiled: the same names, results and effects as the reference.

The reference is :mod:`sej.queue.log.records` for records as bytes, and ``QueueState.apply`` for what they do to a state.
Here the two records that every item has, a LEASE and a DONE, are applied without Python. Any other one is applied by
its handler in the table.
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_DelItem, PyDict_GetItem, PyDict_SetItem, PyDict_Size
from cpython.object cimport PyObject, PyTypeObject
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM
from libc.stdint cimport int8_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from sej.codec._layout cimport get32, get64, put32, put64

from sej.queue.log.key_order import key_hash
from sej.queue.log.format import CHECKED as _CHECKED
from sej.queue.log.format import DONE as _DONE
from sej.queue.log.format import LEASE as _LEASE
from sej.queue.log.format import PICK as _PICK
from sej.queue.log.format import RECORD as _RECORD
from sej.queue.log.format import RECORD_SIZE as _RECORD_SIZE
from sej.queue.log.records import Checked
from sej.queue.log.schedule import Lease as _Lease
from sej.queue.log.state import HANDLERS as _HANDLERS

__all__ = ["apply", "good_bytes", "leased", "one_done", "picked", "picked_run"]

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static uint32_t sej_crc_table[8][256];
    static void sej_crc_start(void) {
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = n;
            for (int bit = 0; bit < 8; bit++)
                crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
            sej_crc_table[0][n] = crc;
        }
        for (uint32_t n = 0; n < 256; n++)
            for (int k = 1; k < 8; k++)
                sej_crc_table[k][n] = sej_crc_table[0][sej_crc_table[k - 1][n] & 255] ^ sej_crc_table[k - 1][n] >> 8;
    }
    /* CRC32C of whole groups of four bytes, eight at a time while there are as many. */
    static uint32_t sej_crc(const unsigned char *p, int size) {
        uint32_t crc = 0xffffffffu;
        for (; size >= 8; size -= 8, p += 8) {
            crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
            crc = sej_crc_table[7][crc & 255] ^ sej_crc_table[6][crc >> 8 & 255]
                ^ sej_crc_table[5][crc >> 16 & 255] ^ sej_crc_table[4][crc >> 24]
                ^ sej_crc_table[3][p[4]] ^ sej_crc_table[2][p[5]] ^ sej_crc_table[1][p[6]] ^ sej_crc_table[0][p[7]];
        }
        while (size-- > 0)
            crc = sej_crc_table[0][(crc ^ *p++) & 255] ^ crc >> 8;
        return crc ^ 0xffffffffu;
    }
    static inline void sej_put_check(unsigned char *p) {
        uint32_t x = sej_crc(p, 36);
        p[36] = x; p[37] = x >> 8; p[38] = x >> 16; p[39] = x >> 24;
    }
    """
    void sej_crc_start()
    uint32_t sej_crc(const unsigned char *p, int size) nogil
    void sej_put_check(unsigned char *p) nogil

cdef extern from "Python.h":
    PyObject *PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t nitems) except NULL
    void PyObject_GC_UnTrack(PyObject *op)

cdef extern from *:
    """
    #define sej_drop(x) Py_DECREF(x)
    """
    void sej_drop(PyObject *)

cdef enum:
    SIZE = 40

cdef uint8_t LEASE = _LEASE
cdef uint8_t DONE = _DONE
cdef uint8_t PICK = _PICK
cdef uint32_t CHECKED = _CHECKED
cdef object ONE = 1
cdef object ZERO = 0
cdef dict HANDLERS = _HANDLERS
cdef object unpack = _RECORD.unpack
cdef PyTypeObject *LEASED = <PyTypeObject *> _Lease

assert _RECORD_SIZE == SIZE
sej_crc_start()


cdef inline void _fill(unsigned char *p, uint8_t kind, int8_t priority, uint16_t attempt, uint32_t holder,
                       uint64_t offset, uint64_t a, uint64_t b, uint32_t extra) noexcept nogil:
    p[0] = kind
    p[1] = <uint8_t> priority
    p[2] = attempt >> 8
    p[3] = attempt & 255
    put32(p + 4, holder)
    put64(p + 8, offset)
    put64(p + 16, a)
    put64(p + 24, b)
    put32(p + 32, extra)
    sej_put_check(p)


cdef inline bytes _record(uint8_t kind, int8_t priority, uint16_t attempt, uint32_t holder, uint64_t offset,
                          uint64_t a, uint64_t b, uint32_t extra):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, SIZE)
    _fill(<unsigned char *> PyBytes_AS_STRING(made), kind, priority, attempt, holder, offset, a, b, extra)
    return made


def one_done(uint64_t offset, uint32_t stamp=0):
    """A single item is done."""
    return _record(DONE, 0, 0, 0, offset, offset + 1, 0, stamp)


def leased(uint64_t first, uint64_t stop, uint32_t holder, uint64_t deadline_ns, uint32_t stamp):
    """A run of fresh messages is leased."""
    return _record(LEASE, 0, 1, holder, first, stop, deadline_ns, stamp)


def picked(uint64_t offset, uint16_t attempt, uint32_t holder, uint64_t deadline_ns, int8_t priority,
           uint64_t key_id=0, uint32_t stamp=0):
    """An item, out of order, is leased."""
    return _record(PICK, priority, attempt, holder, offset, key_id, deadline_ns, stamp)


def picked_run(list messages, Py_ssize_t index, Py_ssize_t n, dict held, uint32_t holder, uint64_t deadline_ns):
    """Items of free keys, in order, are leased."""
    cdef Py_ssize_t stop = min(index + n, PyList_GET_SIZE(messages)), count = max(stop - index, 0)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, count * SIZE)
    cdef unsigned char *p = <unsigned char *> PyBytes_AS_STRING(made)
    cdef list run = []
    cdef set taken = set()
    cdef tuple message
    cdef object key, name
    cdef uint32_t stamp
    while index < stop:
        message = <tuple> PyList_GET_ITEM(messages, index)
        name = <object> PyTuple_GET_ITEM(message, 3)
        key = ZERO
        if name:
            key = key_hash(name)
            if PyDict_GetItem(held, key) != NULL or key in taken:
                break
            taken.add(key)
        stamp = <uint32_t> <int64_t> <object> PyTuple_GET_ITEM(message, 1)
        _fill(p, PICK, 0, 1, holder, <object> PyTuple_GET_ITEM(message, 0), key, deadline_ns, stamp)
        p += SIZE
        index += 1
        run.append((message, ONE))
    return made[: len(run) * SIZE], run


cdef class _View:
    """A buffer held for the length of a call."""
    cdef Py_buffer raw
    cdef bint held

    def __cinit__(self, object data):
        PyObject_GetBuffer(data, &self.raw, PyBUF_CONTIG_RO)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.raw)


def good_bytes(data):
    """Check records, from the first byte on."""
    cdef _View view = _View(data)
    cdef const unsigned char *p = <const unsigned char *> view.raw.buf
    cdef Py_ssize_t size = view.raw.len, at = 0, later
    cdef bint damaged = False
    with nogil:
        while size - at >= SIZE and sej_crc(p + at, SIZE) == CHECKED:
            at += SIZE
        later = at + SIZE
        while size - later >= SIZE and not damaged:
            damaged = sej_crc(p + later, SIZE) == CHECKED
            later += SIZE
    return Checked(at, damaged)


cdef inline object _lease(object holder, object deadline):
    """A first lease, made as ``tuple.__new__`` makes it."""
    cdef PyObject *raw = PyType_GenericAlloc(LEASED, 4)
    cdef object lease = <object> raw
    sej_drop(raw)
    Py_INCREF(ONE)
    PyTuple_SET_ITEM(lease, 0, ONE)
    Py_INCREF(holder)
    PyTuple_SET_ITEM(lease, 1, holder)
    Py_INCREF(deadline)
    PyTuple_SET_ITEM(lease, 2, deadline)
    Py_INCREF(ZERO)
    PyTuple_SET_ITEM(lease, 3, ZERO)
    PyObject_GC_UnTrack(raw)  # numbers only: nothing for the collector to look at
    return lease


cdef const unsigned char *_keyed(state, order, const unsigned char *p, const unsigned char *end) except NULL:
    """Apply the records of fresh items of free keys, taken in order and then done; return where others begin.

    Nothing is set aside, parked or above the frontier: then the order of keys changes in these ways only.
    """
    cdef dict leased = state.leased, keys = order.keys, held = order.held, parked = order.parked, aside = order.aside
    cdef object schedule = state.schedule, anchor = state.anchor
    cdef object item, key, pair
    cdef uint64_t frontier = state.frontier, earliest = schedule.earliest_ns, offset, a, b, number, last = 0
    cdef uint64_t most = state.most
    cdef uint32_t stamp = 0
    cdef Py_ssize_t done = 0
    cdef bint plain, moved = False
    cdef PyObject *found
    if anchor is not None and anchor[0] >= frontier:
        return p
    while p < end:
        offset, a = get64(p + 8), get64(p + 16)
        if p[0] == PICK:
            item, key = offset, a
            if (offset != frontier or p[1] != 0 or p[2] != 0 or p[3] != 1 or PyDict_GetItem(leased, item) != NULL
                    or PyDict_GetItem(held, key) != NULL or PyDict_GetItem(aside, key) != NULL
                    or PyDict_GetItem(keys, item) != NULL):
                break
            b = get64(p + 24)
            PyDict_SetItem(leased, item, _lease(get32(p + 4), b))
            if a:
                PyDict_SetItem(held, key, (item,))
                PyDict_SetItem(keys, item, key)
            if b < earliest:
                earliest = b
            if get32(p + 32):
                last, stamp = offset, get32(p + 32)
            frontier += 1
            moved = True
        elif p[0] == DONE and a <= frontier and a - offset <= most:
            plain = True
            for number in range(offset, a):
                item = number
                found = PyDict_GetItem(keys, item)
                if PyDict_GetItem(leased, item) == NULL:
                    plain = plain and found == NULL
                elif found != NULL:
                    key = <object> found
                    pair = held.get(key)
                    plain = plain and pair is not None and len(<tuple> pair) == 1 and key not in aside
            if not plain:
                break
            for number in range(offset, a):
                item = number
                if PyDict_GetItem(leased, item) != NULL:
                    PyDict_DelItem(leased, item)
                    done += 1
                    found = PyDict_GetItem(keys, item)
                    if found != NULL:
                        key = <object> found
                        PyDict_DelItem(held, key)
                        PyDict_DelItem(keys, item)
        else:
            break
        p += SIZE
    if moved:
        state.frontier, schedule.earliest_ns = frontier, earliest
        if stamp:
            state.anchor = (last, stamp)
    if done:
        state.done += done
    return p


cdef inline bint unknown(dict leased, dict waiting, uint64_t offset):
    cdef object key
    if PyDict_Size(leased) == 0 and PyDict_Size(waiting) == 0:
        return True
    key = offset
    return PyDict_GetItem(leased, key) == NULL and PyDict_GetItem(waiting, key) == NULL


def apply(state, data):
    """Apply whole, checked records, as ``QueueState.apply`` does."""
    cdef _View view = _View(data)
    cdef const unsigned char *p = <const unsigned char *> view.raw.buf
    cdef const unsigned char *end = p + view.raw.len
    cdef object schedule = state.schedule
    cdef dict leased, waiting
    cdef uint64_t frontier, earliest, offset, a, b, number, last = 0, most = state.most
    cdef uint32_t stamp = 0
    cdef Py_ssize_t done
    cdef bint plain, quiet, taken
    cdef object holder, deadline, key, row, handler, fields, order
    cdef PyObject *found
    cdef const unsigned char *start
    if view.raw.len % SIZE:
        raise ValueError(f"{view.raw.len} bytes are not whole records: each has {SIZE}")
    while p < end:
        leased, waiting = state.leased, state.waiting
        frontier, earliest = state.frontier, schedule.earliest_ns
        order = state.order
        if (order is not None and not state.above and not state.intents and not state.expires and not waiting
                and not schedule.lapsed and not order.parked and not state.headers):
            p = _keyed(state, order, p, end)
        plain = order is None and not state.above and not state.intents
        quiet = plain and not schedule.lapsed and not state.expires and not state.headers
        done = 0
        taken = False
        while p < end:
            offset = get64(p + 8)
            a = get64(p + 16)
            if plain and p[0] == LEASE and frontier <= offset < a and a - frontier <= most:
                b = get64(p + 24)
                last, stamp = a - 1, get32(p + 32)
                if (quiet and a - offset == 1 and end - p > SIZE and p[SIZE] == DONE
                        and get64(p + SIZE + 8) == offset and get64(p + SIZE + 16) == a
                        and unknown(leased, waiting, offset)):
                    p += SIZE  # taken and done: nothing of it is left but the counts
                    done += 1
                    offset = a
                else:
                    holder, deadline = get32(p + 4), b
                for number in range(offset, a):
                    key = number
                    if PyDict_Size(waiting) and PyDict_GetItem(waiting, key) != NULL:
                        PyDict_DelItem(waiting, key)
                    PyDict_SetItem(leased, key, _lease(holder, deadline))
                if b < earliest:
                    earliest = b
                frontier = a
                taken = True
            elif quiet and p[0] == DONE and a <= frontier and a - offset <= most:
                for number in range(offset, a):
                    key = number
                    if PyDict_GetItem(leased, key) != NULL:
                        PyDict_DelItem(leased, key)
                        done += 1
                    elif PyDict_Size(waiting) and PyDict_GetItem(waiting, key) != NULL:
                        PyDict_DelItem(waiting, key)
                        done += 1
            else:
                break
            p += SIZE
        if taken:
            state.frontier, schedule.earliest_ns, state.anchor = frontier, earliest, (last, stamp)
        if done:
            state.done += done
        start = p
        while p < end and (p == start or (order is None and not plain) or (plain and p[0] != LEASE and p[0] != DONE)):
            row = unpack(PyBytes_FromStringAndSize(<const char *> p, SIZE))
            found = PyDict_GetItem(HANDLERS, row[0])
            if found != NULL:
                handler, fields = <tuple> <object> found
                handler(state, *fields(row))
            p += SIZE
