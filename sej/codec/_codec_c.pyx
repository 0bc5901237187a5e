# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The codec compiled: the same names, results and errors as :mod:`sej.codec.reference`.

Errors are made by the reference: where these loops meet bytes or arguments that they do not take, they hand the same
call to the reference, so that there is one wording and one truth.
"""

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBUF_WRITABLE, PyBUF_C_CONTIGUOUS, PyObject_GetBuffer, PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.long cimport PyLong_CheckExact, PyLong_FromLongLong
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint64_t
from libc.string cimport memcpy

from sej.codec._layout cimport (
    HEAD, MAX_KEY, MAX_SIZE, MAX_TYPE, MAX_VALUE, OVERHEAD, Py_SIZE, fits, get32, get64, put_message, whole,
)

from sej.codec import reference as _reference
from sej.codec.reference import Candidate, Columns, Run
from sej.message import Message as _Message

cdef extern from *:
    """
    enum { SEJ_FIELDS = 5 };
    /* A new message. The collector never tracks it: numbers and bytes only, there is nothing for it to traverse. */
    static inline PyObject *sej_message(PyTypeObject *type, int64_t offset, PyObject *timestamp, PyObject *kind,
                                        const char *key, Py_ssize_t key_size, const char *value, Py_ssize_t value_size) {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, type, SEJ_FIELDS);
        if (made == NULL)
            return NULL;
    #if PY_VERSION_HEX >= 0x030E0000
        made->ob_hash = -1;  /* tuples remember their hash: not computed yet */
    #endif
        PyObject **fields = made->ob_item;
        fields[0] = PyLong_FromLongLong(offset);
        fields[1] = Py_NewRef(timestamp);
        fields[2] = Py_NewRef(kind);
        fields[3] = PyBytes_FromStringAndSize(key, key_size);
        fields[4] = PyBytes_FromStringAndSize(value, value_size);
        if (fields[0] == NULL || fields[3] == NULL || fields[4] == NULL)
            Py_CLEAR(made);
        return (PyObject *)made;
    }
    #include <stddef.h>
    #include <structmember.h>
    #define sej_items_at offsetof(PyTupleObject, ob_item)
    #define sej_set_alloc(type, function) ((type)->tp_alloc = (function))
    """
    object sej_message(PyTypeObject *type, int64_t offset, object timestamp, object kind,
                       const char *key, Py_ssize_t key_size, const char *value, Py_ssize_t value_size)
    Py_ssize_t ITEMS_AT "sej_items_at"
    void set_alloc "sej_set_alloc"(PyTypeObject *type, PyObject *(*function)(PyTypeObject *, Py_ssize_t) except NULL)
    enum:
        FIELDS "SEJ_FIELDS"
        READONLY
        T_OBJECT_EX
    ctypedef struct PyMemberDef:
        const char *name
        int type
        Py_ssize_t offset
        int flags
        const char *doc
    object PyDescr_NewMember(PyTypeObject *type, PyMemberDef *member)

cdef extern from "Python.h":
    PyObject *PyType_GenericAlloc(PyTypeObject *type, Py_ssize_t size) except NULL

cdef int64_t NO_TIME = INT64_MIN
cdef PyTypeObject *MESSAGE = <PyTypeObject *> _Message
cdef PyMemberDef[5] MEMBERS  # the interpreter refers to them, and to their names
cdef list NAMES = [name.encode() for name in _Message._fields]
assert len(NAMES) == FIELDS


cdef PyObject *new_message(PyTypeObject *cls, Py_ssize_t size) except NULL:
    """Make a message for tuple.__new__, which takes any number of fields; with fewer, a member would be out of bounds."""
    if size != FIELDS:
        raise TypeError(f"a message has {FIELDS} fields, got {size}")
    return PyType_GenericAlloc(cls, size)


def _allocate(cls, **options):
    """Give a subclass the same check: each class has an allocator of its own."""
    super(_Message, cls).__init_subclass__(**options)
    set_alloc(<PyTypeObject *> cls, new_message)


def _read_fields_in_place():
    """Make the fields of a message members of the object, as slots are.

    The interpreter reads a member without a call. A named tuple's own descriptor takes it ten times as many steps, and
    most readers read two fields of each message.
    """
    set_alloc(MESSAGE, new_message)
    _Message.__init_subclass__ = classmethod(_allocate)
    for index in range(FIELDS):
        MEMBERS[index].name = NAMES[index]
        MEMBERS[index].type = T_OBJECT_EX
        MEMBERS[index].offset = ITEMS_AT + index * sizeof(PyObject *)
        MEMBERS[index].flags = READONLY
        setattr(_Message, _Message._fields[index], PyDescr_NewMember(MESSAGE, &MEMBERS[index]))


_read_fields_in_place()


cdef inline int64_t claimed(const unsigned char *p, int64_t room) noexcept nogil:
    """Return the size in the lengths of the message at p, or 0 if the lengths are incomplete or impossible."""
    cdef int64_t key, size
    if room < HEAD:
        return 0
    key = <signed char> p[17]
    if key < 0 or room < HEAD + key + 4:
        return 0
    size = <int32_t> get32(p + HEAD + key)
    return 0 if size < 0 or size + OVERHEAD + key > MAX_SIZE else size + OVERHEAD + key


cdef inline bint is_due(const unsigned char *p, int64_t due, int64_t count) noexcept nogil:
    """Return whether the message at p has the offset due + count. The largest offset is only expected, never used."""
    cdef uint64_t offset = <uint64_t> due + <uint64_t> count
    return get64(p) == offset and offset != <uint64_t> INT64_MAX


cdef class _View:
    """A buffer held for the length of a call, with its bounds checked once."""
    cdef Py_buffer raw
    cdef bint held
    cdef const unsigned char *data

    def __cinit__(self, object data, int64_t position, int64_t end):
        PyObject_GetBuffer(data, &self.raw, PyBUF_CONTIG_RO)
        self.held = True
        self.data = <const unsigned char *> self.raw.buf
        if position < 0 or end < position or end > self.raw.len:
            raise ValueError(f"position {position} and end {end} do not lie in {self.raw.len} bytes")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.raw)


cdef class _Array:
    """A writable array of fixed-width numbers."""
    cdef Py_buffer raw
    cdef bint held

    def __cinit__(self, object data, Py_ssize_t width):
        PyObject_GetBuffer(data, &self.raw, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
        self.held = True
        if self.raw.itemsize != width:
            raise ValueError(f"an array must have {width}-byte numbers, got {self.raw.itemsize}-byte ones")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.raw)

    cdef Py_ssize_t count(self):
        return self.raw.len // self.raw.itemsize


cdef inline object make(const unsigned char *p, int64_t size, int64_t offset, object timestamp, object kind):
    """Return the message at p, which is whole."""
    cdef int64_t key = p[17]
    cdef const char *data = <const char *> p + HEAD
    return sej_message(MESSAGE, offset, timestamp, kind, data, key, data + key + 4, size - OVERHEAD - key)


message_size = _reference.message_size


def encode(offset, timestamp, type, key, value):
    """One message; the reference encodes one of other types, and refuses one that does not fit."""
    if not (
        PyLong_CheckExact(offset) and PyLong_CheckExact(timestamp) and PyLong_CheckExact(type)
        and 0 <= offset <= INT64_MAX and NO_TIME <= timestamp <= INT64_MAX and 0 <= type <= MAX_TYPE
        and fits(<PyObject *> key, MAX_KEY) and fits(<PyObject *> value, MAX_VALUE)
    ):
        return _reference.encode(offset, timestamp, type, key, value)
    cdef bytes out = PyBytes_FromStringAndSize(NULL, OVERHEAD + Py_SIZE(<PyObject *> key) + Py_SIZE(<PyObject *> value))
    put_message(<unsigned char *> PyBytes_AS_STRING(out), offset, timestamp, type, <PyObject *> key, <PyObject *> value)
    return out


def decode(data, int64_t position, int64_t end):
    """Return the message at position and where it ends; None if it is incomplete."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *p = view.data + position
    cdef int64_t size = whole(p, end - position)
    if size == 0 or get64(p) > 9223372036854775807ULL:
        return _reference.decode(data, position, end)
    return make(p, size, <int64_t> get64(p), PyLong_FromLongLong(<int64_t> get64(p + 8)), p[16]), position + size


def decode_many(data, int64_t position, int64_t end, int64_t due, int64_t limit):
    """Return the messages due, due + 1, ... from position on, at most limit, and where the next one starts."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *p = view.data + position
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, time = 0
    cdef unsigned char type = 0
    cdef object timestamp = 0, kind = 0
    cdef list messages = []
    while count < limit:
        size = whole(p, stop - p)
        if size == 0 or not is_due(p, due, 0):
            break
        if <int64_t> get64(p + 8) != time:  # a batch that came together shares one number
            time = <int64_t> get64(p + 8)
            timestamp = PyLong_FromLongLong(time)
        if p[16] != type:
            type = p[16]
            kind = type
        messages.append(make(p, size, due, timestamp, kind))
        p += size
        due += 1
        count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    return messages, p - view.data


cdef object _measure(_View view, object data, int64_t position, int64_t end, int64_t due, int64_t limit):
    cdef const unsigned char *start = view.data + position
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, first = NO_TIME, last = NO_TIME, newest = NO_TIME
    while p - start < limit:
        size = whole(p, stop - p)
        if size == 0 or not is_due(p, due, count):
            break
        last = <int64_t> get64(p + 8)
        if count == 0:
            first = newest = last
        elif last > newest:
            newest = last
        p += size
        count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    return Run(count, p - view.data, first, last, newest)


def measure(data, int64_t position, int64_t end, int64_t due, int64_t limit):
    """Return the run of good messages from position on, up to the first that ends limit or more bytes further."""
    return _measure(_View(data, position, end), data, position, end, due, limit)


def walk(data, int64_t position, int64_t end, int64_t due, offsets, timestamps, sizes):
    """Fill three arrays with the offset, timestamp (ns) and size (bytes) of the messages from position on."""
    cdef _View view = _View(data, position, end)
    cdef _Array offset_array = _Array(offsets, 8)
    cdef _Array timestamp_array = _Array(timestamps, 8)
    cdef _Array size_array = _Array(sizes, 4)
    cdef int64_t limit = min(offset_array.count(), timestamp_array.count(), size_array.count())
    cdef int64_t *to_offset = <int64_t *> offset_array.raw.buf
    cdef int64_t *to_timestamp = <int64_t *> timestamp_array.raw.buf
    cdef int32_t *to_size = <int32_t *> size_array.raw.buf
    cdef const unsigned char *p = view.data + position
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size
    with nogil:
        while count < limit:
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            to_offset[count] = due + count
            to_timestamp[count] = <int64_t> get64(p + 8)
            to_size[count] = <int32_t> size
            p += size
            count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    return count, p - view.data


cdef object fixed_columns(_View view, int64_t position, int64_t end, int64_t due, int64_t limit):
    """Return the columns without keys and values: one walk, into arrays that are large enough for any messages."""
    cdef int64_t room = max(min(limit, (end - position) // OVERHEAD), 0)
    cdef const unsigned char *start = view.data + position
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size
    cdef bytes timestamps = PyBytes_FromStringAndSize(NULL, room * 8)
    cdef bytes types = PyBytes_FromStringAndSize(NULL, room * 4)
    cdef int64_t *to_timestamp = <int64_t *> PyBytes_AS_STRING(timestamps)
    cdef int32_t *to_type = <int32_t *> PyBytes_AS_STRING(types)
    with nogil:
        while count < room:
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            to_timestamp[count] = <int64_t> get64(p + 8)
            to_type[count] = p[16]
            p += size
            count += 1
    if count < room:
        timestamps, types = timestamps[:count * 8], types[:count * 4]
    return Columns(count, p - view.data, timestamps, types, b"", b"", b"", b"")


def renumber(data, int64_t position, int64_t end, int64_t due, int64_t first):
    """Overwrite the offsets of the messages from position on, in place."""
    cdef _View view = _View(data, position, end)
    cdef unsigned char *p = <unsigned char *> view.data + position
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, shift
    cdef uint64_t number
    if not isinstance(data, bytearray):
        raise TypeError(f"data must be a bytearray, got {type(data).__name__}")
    with nogil:
        while True:
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            number = <uint64_t> first + <uint64_t> count
            for shift in range(8):
                p[shift] = <unsigned char> ((number >> (56 - 8 * shift)) & 0xFF)
            p += size
            count += 1
    if count == 0:
        _reference._check_due(data, position, end, due)
    return count, p - view.data


def columns(data, int64_t position, int64_t end, int64_t due, int64_t limit, bint keys=True, bint values=True):
    """Return at most limit messages from position on, as columns; without keys or values these are not copied."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *start = view.data + position
    cdef const unsigned char *p = start
    cdef const unsigned char *stop = view.data + end
    cdef int64_t count = 0, size, key_bytes = 0, value_bytes = 0, key, at
    cdef bytes timestamps, types, key_ends = b"", key_data = b"", value_ends = b"", value_data = b""
    cdef int64_t *to_timestamp
    cdef int32_t *to_type
    cdef int32_t *to_key_end = NULL
    cdef int32_t *to_value_end = NULL
    cdef unsigned char *to_key = NULL
    cdef unsigned char *to_value = NULL
    if not keys and not values:
        found = fixed_columns(view, position, end, due, limit)
        if not found.messages and limit > 0:
            _reference._check_due(data, position, end, due)
        return found
    with nogil:
        while count < limit:
            size = whole(p, stop - p)
            if size == 0 or not is_due(p, due, count):
                break
            key = p[17]
            if key_bytes + key > MAX_SIZE or value_bytes + size - OVERHEAD - key > MAX_SIZE:
                break
            key_bytes += key
            value_bytes += size - OVERHEAD - key
            p += size
            count += 1
    if count == 0 and limit > 0:
        _reference._check_due(data, position, end, due)
    timestamps = PyBytes_FromStringAndSize(NULL, count * 8)
    types = PyBytes_FromStringAndSize(NULL, count * 4)
    to_timestamp = <int64_t *> PyBytes_AS_STRING(timestamps)
    to_type = <int32_t *> PyBytes_AS_STRING(types)
    if keys:
        key_ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        key_data = PyBytes_FromStringAndSize(NULL, key_bytes)
        to_key_end = <int32_t *> PyBytes_AS_STRING(key_ends)
        to_key = <unsigned char *> PyBytes_AS_STRING(key_data)
        to_key_end[0] = 0
    if values:
        value_ends = PyBytes_FromStringAndSize(NULL, (count + 1) * 4)
        value_data = PyBytes_FromStringAndSize(NULL, value_bytes)
        to_value_end = <int32_t *> PyBytes_AS_STRING(value_ends)
        to_value = <unsigned char *> PyBytes_AS_STRING(value_data)
        to_value_end[0] = 0
    with nogil:
        p = start
        key_bytes = value_bytes = 0
        for at in range(count):
            key = p[17]
            size = <int32_t> get32(p + HEAD + key)
            to_timestamp[at] = <int64_t> get64(p + 8)
            to_type[at] = p[16]
            if keys:
                memcpy(to_key + key_bytes, p + HEAD, key)
                key_bytes += key
                to_key_end[at + 1] = <int32_t> key_bytes
            if values:
                memcpy(to_value + value_bytes, p + HEAD + key + 4, size)
                value_bytes += size
                to_value_end[at + 1] = <int32_t> value_bytes
            p += OVERHEAD + key + size
    return Columns(count, p - view.data, timestamps, types, key_ends, key_data, value_ends, value_data)


def find_candidate(data, int64_t position, int64_t end, int64_t due, int64_t damage, int64_t file_end):
    """Return the first message from position on that could follow damage."""
    cdef _View view = _View(data, position, end)
    cdef const unsigned char *start = view.data
    cdef int64_t at = position, size = 0
    cdef uint64_t offset = 0
    with nogil:
        while at <= end - OVERHEAD:
            offset = get64(start + at)
            if (offset < <uint64_t> INT64_MAX and <int64_t> offset > due
                    and <int64_t> offset - due <= (at - damage) // OVERHEAD):
                size = claimed(start + at, end - at)
                if size and size <= end - at:
                    size = whole(start + at, end - at)
                elif size > file_end - at:
                    size = 0
                if size:
                    break
            at += 1
    return Candidate(at, at + size, offset) if size else None
