# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A PutRequest made of messages, and turned into the journal's own bytes, without an object a message.

The references are in ``frames``, by protobuf: :func:`encode` does what ``put_request`` does, and :func:`transcode` what
``open_put_request`` does. Whatever is not plain here (an unknown field, a message that the journal has no room for,
bytes that are not a request) is ``None``, and the reference says what it is.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from sej.codec._layout cimport HEAD, MAX_KEY, MAX_SIZE, MAX_TYPE, OVERHEAD, put32, put64

__all__ = ["encode", "transcode"]

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    PyObject *PyList_GET_ITEM(PyObject *values, Py_ssize_t index)  # borrowed: its reference count does not change
    PyObject *PyTuple_GET_ITEM(PyObject *values, Py_ssize_t index)
    bint PyTuple_Check(object value)
    Py_ssize_t PyTuple_GET_SIZE(object value)

cdef enum:
    CLIENT_ID = 1 << 3 | 2
    JOURNAL_DIR = 2 << 3 | 2
    MESSAGES = 3 << 3 | 2
    OFFSET = 1 << 3
    TIMESTAMP = 2 << 3
    TYPE = 3 << 3
    KEY = 4 << 3 | 2
    VALUE = 5 << 3 | 2

cdef int64_t MAX_OFFSET = 9223372036854775807
cdef int64_t INT64_MIN = -9223372036854775807 - 1
cdef int64_t INT64_MAX = 9223372036854775807


cdef inline bint varint(const uint8_t **at, const uint8_t *end, uint64_t *out) noexcept nogil:
    """Read a number; false if there is none in as few bytes as it needs. Protobuf decides about others."""
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int shift = 0
    cdef const uint8_t *p = at[0]
    while p < end and shift < 64:
        byte = p[0]
        p += 1
        value |= <uint64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            if shift and (not byte or (shift == 63 and byte > 1)):
                return False
            at[0] = p
            out[0] = value
            return True
        shift += 7
    return False


cdef inline bint stretch(const uint8_t **at, const uint8_t *end, const uint8_t **start, uint64_t *size) noexcept nogil:
    """Read a length and pass over what it spans; false where that is not there."""
    if not varint(at, end, size) or size[0] > <uint64_t> (end - at[0]):
        return False
    start[0] = at[0]
    at[0] += size[0]
    return True


cdef uint8_t *message(const uint8_t *p, const uint8_t *end, uint8_t *out) noexcept nogil:
    """Write one message as it stands in a journal; returns where the next one goes, NULL: not plain."""
    cdef uint64_t tag = 0, offset = 0, timestamp = 0, type = 0, key_size = 0, value_size = 0
    cdef const uint8_t *key = p
    cdef const uint8_t *value = p
    cdef bint good
    while p < end:
        if not varint(&p, end, &tag):
            return NULL
        if tag == OFFSET:
            good = varint(&p, end, &offset)
        elif tag == TIMESTAMP:
            good = varint(&p, end, &timestamp)
        elif tag == TYPE:
            good = varint(&p, end, &type)
        elif tag == KEY:
            good = stretch(&p, end, &key, &key_size)
        elif tag == VALUE:
            good = stretch(&p, end, &value, &value_size)
        else:
            good = False
        if not good:
            return NULL
    if offset > <uint64_t> MAX_OFFSET or type > MAX_TYPE or key_size > MAX_KEY or OVERHEAD + key_size + value_size > MAX_SIZE:
        return NULL
    put64(out, offset)
    put64(out + 8, timestamp)
    out[16] = <uint8_t> type
    out[17] = <uint8_t> key_size
    memcpy(out + HEAD, key, key_size)
    out += HEAD + key_size
    put32(out, <uint32_t> value_size)
    memcpy(out + 4, value, value_size)
    out += 4 + value_size
    put32(out, <uint32_t> (OVERHEAD + key_size + value_size))
    return out + 4


cdef inline int length(uint64_t value) noexcept nogil:
    """Return how many bytes a number takes."""
    cdef int size = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


cdef inline uint8_t *number(uint8_t *out, uint64_t value) noexcept nogil:
    """Write a number; returns what follows it."""
    while value > 0x7F:
        out[0] = <uint8_t> (value & 0x7F | 0x80)
        out += 1
        value >>= 7
    out[0] = <uint8_t> value
    return out + 1


cdef inline uint8_t *field(uint8_t *out, uint8_t tag, const char *data, uint64_t size) noexcept nogil:
    """Write a field of bytes; an empty one is left out, as protobuf does."""
    if size == 0:
        return out
    out[0] = tag
    out = number(out + 1, size)
    memcpy(out, data, size)
    return out + size


cdef inline uint8_t *count(uint8_t *out, uint8_t tag, uint64_t value) noexcept nogil:
    """Write a field that is a number; 0 is left out."""
    if value == 0:
        return out
    out[0] = tag
    return number(out + 1, value)


cdef inline bint plain(object value, int64_t low, int64_t high, uint64_t *out) except -1:
    """Read an int; false if it is not an int or out of its range."""
    cdef int overflow = 0
    cdef int64_t found
    if not PyLong_CheckExact(value):
        return False
    found = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow or not low <= found <= high:
        return False
    out[0] = <uint64_t> found
    return True


cdef uint64_t body(object found, uint64_t *numbers) except? 0:
    """Return the size of a message in a request, and its three numbers; 0: not plain, or empty."""
    cdef uint64_t size = 0, key_size, value_size
    cdef object key
    cdef object value
    if not PyTuple_Check(found) or PyTuple_GET_SIZE(found) != 5:
        return 0
    key = <object> PyTuple_GET_ITEM(<PyObject *> found, 3)
    value = <object> PyTuple_GET_ITEM(<PyObject *> found, 4)
    if not (plain(<object> PyTuple_GET_ITEM(<PyObject *> found, 0), 0, MAX_OFFSET, &numbers[0])
            and plain(<object> PyTuple_GET_ITEM(<PyObject *> found, 1), INT64_MIN, INT64_MAX, &numbers[1])
            and plain(<object> PyTuple_GET_ITEM(<PyObject *> found, 2), 0, MAX_TYPE, &numbers[2])
            and PyBytes_CheckExact(key) and PyBytes_CheckExact(value)):
        return 0
    key_size = PyBytes_GET_SIZE(key)
    value_size = PyBytes_GET_SIZE(value)
    if key_size > MAX_KEY or OVERHEAD + key_size + value_size > MAX_SIZE:
        return 0
    for at in range(3):
        if numbers[at]:
            size += 1 + length(numbers[at])
    if key_size:
        size += 1 + length(key_size) + key_size
    if value_size:
        size += 1 + length(value_size) + value_size
    return size


def encode(str client_id not None, str journal_dir not None, list messages not None):
    """Encode a PutRequest as protobuf does; None where the reference has to look at it."""
    cdef bytes client = client_id.encode("utf-8", "replace")
    cdef bytes journal = journal_dir.encode("utf-8", "replace")
    cdef list found = list(messages)  # ours: no other thread changes it between the two rounds
    cdef Py_ssize_t at
    cdef uint64_t size, room = 0
    cdef uint64_t numbers[3]
    cdef bytes request
    cdef uint8_t *out
    cdef object message
    cdef object key
    cdef object value
    if not client_id.isascii() or not journal_dir.isascii():
        return None
    for at in range(len(found)):
        size = body(<object> PyList_GET_ITEM(<PyObject *> found, at), numbers)
        if size == 0:
            return None
        room += 1 + length(size) + size
    for part in (client, journal):
        room += 1 + length(PyBytes_GET_SIZE(part)) + PyBytes_GET_SIZE(part) if part else 0
    request = PyBytes_FromStringAndSize(NULL, room)
    out = <uint8_t *> PyBytes_AS_STRING(request)
    out = field(out, CLIENT_ID, PyBytes_AS_STRING(client), PyBytes_GET_SIZE(client))
    out = field(out, JOURNAL_DIR, PyBytes_AS_STRING(journal), PyBytes_GET_SIZE(journal))
    for at in range(len(found)):
        message = <object> PyList_GET_ITEM(<PyObject *> found, at)
        size = body(message, numbers)
        out[0] = MESSAGES
        out = number(out + 1, size)
        out = count(out, OFFSET, numbers[0])
        out = count(out, TIMESTAMP, numbers[1])
        out = count(out, TYPE, numbers[2])
        key = <object> PyTuple_GET_ITEM(<PyObject *> message, 3)
        value = <object> PyTuple_GET_ITEM(<PyObject *> message, 4)
        out = field(out, KEY, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        out = field(out, VALUE, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    return request


def transcode(bytes data not None):
    """Client id, journal and encoded messages of a PutRequest; None where the reference has to look at it."""
    cdef const uint8_t *begin = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *end = begin + PyBytes_GET_SIZE(data)
    cdef const uint8_t *p = begin
    cdef const uint8_t *part = NULL
    cdef const uint8_t *client = begin
    cdef const uint8_t *journal = begin
    cdef uint64_t tag = 0, size = 0, client_size = 0, journal_size = 0, room = 0
    cdef bytes encoded
    cdef uint8_t *out
    cdef uint8_t *start
    while p < end:
        if not varint(&p, end, &tag) or not stretch(&p, end, &part, &size):
            return None
        if tag == MESSAGES:
            room += OVERHEAD + size
        elif tag == CLIENT_ID and client == begin:  # the first one: protobuf looks at those that are replaced, too
            client, client_size = part, size
        elif tag == JOURNAL_DIR and journal == begin:
            journal, journal_size = part, size
        else:
            return None
    encoded = PyBytes_FromStringAndSize(NULL, room)
    start = out = <uint8_t *> PyBytes_AS_STRING(encoded)
    p = begin
    while p < end:
        varint(&p, end, &tag)
        stretch(&p, end, &part, &size)
        if tag == MESSAGES:
            out = message(part, part + size, out)
            if out == NULL:
                return None
    try:
        names = client[:client_size].decode("utf-8"), journal[:journal_size].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return names[0], names[1], memoryview(encoded)[: out - start]
