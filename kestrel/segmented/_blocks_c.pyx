# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Whole blocks of records decoded, compiled: the same results as the functions of ``codec``, which are the reference."""

from cython cimport final

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_NoMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport int32_t, int64_t, uint8_t

from kestrel.segmented.codec import Item as _Item
from kestrel.segmented.codec import Totals as _Totals

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline int32_t kestrel_le32(const uint8_t *p) {
        return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    }
    static inline int64_t kestrel_le64(const uint8_t *p) {
        return (int64_t)((uint64_t)(uint32_t)kestrel_le32(p) | (uint64_t)(uint32_t)kestrel_le32(p + 4) << 32);
    }
    static inline PyObject *kestrel_tuple(PyTypeObject *type, Py_ssize_t size) {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, type, size);
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) made->ob_hash = -1;  /* tuples remember their hash: not computed yet */
    #endif
        return (PyObject *)made;
    }
    #define kestrel_decref(x) Py_DECREF(x)
    /* Give an item that nothing but the caller refers to an id, its other numbers and as much data as it has.
       Return 0 if it cannot be reused. */
    static inline int kestrel_reuse(
        PyObject *item, PyTypeObject *type, PyObject *number, PyObject *add_time, PyObject *errors,
        const char *data, Py_ssize_t size
    ) {
    #if defined(PYPY_VERSION) || defined(Py_GIL_DISABLED) || PY_VERSION_HEX >= 0x030E0000
        return 0;
    #else
        PyObject *old, *bytes;
        if (Py_REFCNT(item) != 1 || Py_TYPE(item) != type || PyTuple_GET_ITEM(item, 2) != Py_None) return 0;
        bytes = PyTuple_GET_ITEM(item, 4);
        if (Py_REFCNT(bytes) != 1 || !PyBytes_CheckExact(bytes) || PyBytes_GET_SIZE(bytes) != size) return 0;
        _Py_COMP_DIAG_PUSH
        _Py_COMP_DIAG_IGNORE_DEPR_DECLS
        ((PyBytesObject *)bytes)->ob_shash = -1;
        _Py_COMP_DIAG_POP
        memcpy(PyBytes_AS_STRING(bytes), data, size);
    #define KESTREL_SET(i, value) \
        old = PyTuple_GET_ITEM(item, i); \
        if (old != (value)) { Py_INCREF(value); PyTuple_SET_ITEM(item, i, value); Py_DECREF(old); }
        KESTREL_SET(0, number)
        KESTREL_SET(1, add_time)
        KESTREL_SET(3, errors)
    #undef KESTREL_SET
        return 1;
    #endif
    }
    """
    bint reuse "kestrel_reuse"(
        PyObject *item, PyTypeObject *type, object number, object add_time, object errors, const char *data, Py_ssize_t size)
    int32_t le32 "kestrel_le32"(const uint8_t *p) nogil
    int64_t le64 "kestrel_le64"(const uint8_t *p) nogil
    PyObject *new_tuple "kestrel_tuple"(PyTypeObject *type, Py_ssize_t size)
    void decref "kestrel_decref"(PyObject *value)

cdef enum:
    PUT = 0x86
    PUT_EXPIRING = 0x88
    HEAD = 25  # command byte, size, error count, id, time of adding
    HEAD_EXPIRING = 33  # and the time of expiry
    MAX_DATA = 16 << 20

cdef PyTypeObject *ITEM = <PyTypeObject *> _Item


cdef inline int64_t head_size(const uint8_t *p, int64_t room) noexcept nogil:
    """Return the size of the head of the ordinary PUT at p, or 0 if it is not whole."""
    cdef int64_t head, size
    if room < HEAD:
        return 0
    if p[0] == PUT:
        head = HEAD
    elif p[0] == PUT_EXPIRING and room >= HEAD_EXPIRING:
        head = HEAD_EXPIRING
    else:
        return 0
    size = le32(p + 1)
    return 0 if size < 0 or size > MAX_DATA or size > room - head else head


cdef inline object item_at(const uint8_t *p, int64_t head, object number, object add_time, object errors):
    cdef object expire_time = le64(p + 25) if head == HEAD_EXPIRING else None
    cdef object data = PyBytes_FromStringAndSize(<const char *> p + head, le32(p + 1))
    # Never tracked by the collector: it refers to numbers and bytes only.
    cdef PyObject *raw = new_tuple(ITEM, 5)
    cdef object item
    if raw == NULL:
        PyErr_NoMemory()
    item = <object> raw
    Py_INCREF(number)
    PyTuple_SET_ITEM(item, 0, number)
    Py_INCREF(add_time)
    PyTuple_SET_ITEM(item, 1, add_time)
    Py_INCREF(expire_time)
    PyTuple_SET_ITEM(item, 2, expire_time)
    Py_INCREF(errors)
    PyTuple_SET_ITEM(item, 3, errors)
    Py_INCREF(data)
    PyTuple_SET_ITEM(item, 4, data)
    decref(raw)
    return item


def decode_items(bytes data not None):
    """The items of all whole, ordinary PUTs at the start of data, and where the next record begins."""
    cdef const uint8_t *start = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *p = start
    cdef const uint8_t *end = start + PyBytes_GET_SIZE(data)
    cdef int64_t head, before = 0
    cdef object add_time = before  # shared with the item before if it is equal, which saves 130 instructions
    cdef list found = []
    while True:
        head = head_size(p, end - p)
        if head == 0:
            return found, p - start
        if le64(p + 17) != before:
            before = le64(p + 17)
            add_time = before
        found.append(item_at(p, head, le64(p + 9), add_time, le32(p + 5)))
        p += head + le32(p + 1)


@final
cdef class Items:
    """The items of whole, ordinary PUTs, each made when it is taken."""

    def __cinit__(self):
        self._add_time = self._errors = 0  # shared with the item before if they are equal

    def __len__(self):
        """Return how many are left."""
        return self._count

    def __iter__(self):
        return self

    def __next__(self):
        item = self.take(NULL)
        if item is None:
            raise StopIteration
        return item

    cdef object take(self, PyObject *spare):
        """Return the next item, or None after the last one.

        It may be the spare one with other values, if only the caller of this refers to that one.
        """
        cdef const uint8_t *p
        cdef int64_t head
        cdef int32_t size
        cdef object item, number
        if self._count == 0:
            return None
        p = <const uint8_t *> PyBytes_AS_STRING(self._data) + self._at
        head = HEAD if p[0] == PUT else HEAD_EXPIRING
        size = le32(p + 1)
        if le64(p + 17) != self._before:
            self._add_time = le64(p + 17)
            self._before = le64(p + 17)
        if le32(p + 5) != self._errors_before:
            self._errors = le32(p + 5)
            self._errors_before = le32(p + 5)
        number = le64(p + 9)
        if spare != NULL and head == HEAD and reuse(
            spare, ITEM, number, self._add_time, self._errors, <const char *> p + head, size
        ):
            item = <object> spare
        else:
            item = item_at(p, head, number, self._add_time, self._errors)
        self._count -= 1
        self._at += head + size
        return item


def items_in(bytes data not None):
    """As decode_items, but each item is made when it is taken."""
    cdef const uint8_t *start = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *p = start
    cdef const uint8_t *end = start + PyBytes_GET_SIZE(data)
    cdef int64_t head
    cdef Items found = Items()
    found._data = data
    while True:
        head = head_size(p, end - p)
        if head == 0:
            return found, p - start
        found._count += 1
        p += head + le32(p + 1)


def decode_sizes(bytes data not None):
    """As decode_items, of each item its id and the size of its data."""
    cdef const uint8_t *start = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *p = start
    cdef const uint8_t *end = start + PyBytes_GET_SIZE(data)
    cdef int64_t head
    cdef list found = []
    while True:
        head = head_size(p, end - p)
        if head == 0:
            return found, p - start
        found.append((le64(p + 9), le32(p + 1)))
        p += head + le32(p + 1)


def decode_totals(bytes data not None):
    """As decode_items, the totals of all items as one; none if there is no item."""
    cdef const uint8_t *start = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *p = start
    cdef const uint8_t *end = start + PyBytes_GET_SIZE(data)
    cdef int64_t head, size, items = 0, first = 0, lowest = 0, highest = 0, before = 0, last = 0, data_bytes = 0
    cdef int64_t begin = 0
    cdef bint rising = True
    with nogil:
        while True:
            head = head_size(p, end - p)
            if head == 0:
                break
            before = last
            last = le64(p + 9)
            if items == 0:
                begin = last
            elif last <= before:
                rising = False
            if first <= 0 < last:
                first = last
            if items == 0 or last < lowest:
                lowest = last
            if last > highest:
                highest = last
            size = le32(p + 1)
            data_bytes += size
            items += 1
            p += head + size
    if items == 0:
        return [], p - start
    return [_Totals(items, first, lowest, highest, before, last, data_bytes, begin, bool(rising))], p - start
