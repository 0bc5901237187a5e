# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A PutRequest made of messages, and turned into the journal's own bytes, without an object a message.

The references are in ``frames``, by protobuf: :class:`Requests` does what ``put_requests`` does, and :func:`transcode`
what ``open_put_request`` does. Whatever is not plain here (an unknown field, a message that the journal has no room for,
bytes that are not a request) is ``None``, and the reference says what it is.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from sej.codec._layout cimport HEAD, MAX_KEY, MAX_SIZE, MAX_TYPE, OVERHEAD, put32, put64

__all__ = ["Requests", "transcode"]

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    PyObject *PyTuple_GET_ITEM(object values, Py_ssize_t index)  # borrowed: its reference count does not change
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


cdef enum:
    SMALL = 1 << 16
    LARGE = 1 << 21  # more than a request, unless one message is larger

cdef uint8_t *spare = NULL
cdef Py_ssize_t spare_room = 0
"""A buffer for the next request, at most LARGE. New memory would cost more time than writing into it."""


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


cdef inline uint64_t number_size(uint64_t value) noexcept nogil:
    """Return how many bytes a field takes that is a number; one with 0 is left out."""
    return 1 + length(value) if value else 0


cdef inline uint64_t field_size(uint64_t size) noexcept nogil:
    """Return how many bytes a field of so many bytes takes."""
    return 1 + length(size) + size if size else 0


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


cdef class Requests:
    """The requests for messages, each with as many as fit: an iterator of (messages, request), as ``frames`` has it.

    Each message is looked at once: it is weighed, and written behind the others. The request is None if the reference
    has to encode these messages.
    """

    cdef object _source, _kind, _weigh, _held
    cdef bytes _client, _journal
    cdef bint _ascii, _plain
    cdef int64_t _most_bytes, _size
    cdef Py_ssize_t _most_messages, _used, _room
    cdef list _batch
    cdef uint8_t *_data

    def __init__(self, str client_id not None, str journal_dir not None, messages, kind, weigh,
                 int64_t most_bytes, Py_ssize_t most_messages):
        """Begin. An object of another class than kind, or with other parts than bytes, is weighed by a call."""
        self._client = client_id.encode("utf-8", "replace")
        self._journal = journal_dir.encode("utf-8", "replace")
        self._ascii = client_id.isascii() and journal_dir.isascii()
        self._source = iter(messages)
        self._kind, self._weigh = kind, weigh
        self._most_bytes, self._most_messages = most_bytes, most_messages

    def __dealloc__(self):
        self._drop()

    def __iter__(self):
        return self

    def __next__(self):
        self._batch = []
        self._size = 0
        self._plain = self._ascii
        self._begin()
        message, self._held = self._held, None
        if message is not None:
            self._take(message)
        if self._source is not None:
            for message in self._source:
                if not self._take(message):
                    self._held = message
                    break
            else:
                self._source = None  # it is not asked again
        batch, self._batch = self._batch, None
        request = PyBytes_FromStringAndSize(<char *> self._data, self._used) if self._plain and batch else None
        self._drop()
        if not batch:
            raise StopIteration
        return batch, request

    cdef bint _take(self, message) except -1:
        """Take a message; false if it belongs to the next request."""
        cdef int64_t size
        cdef object key = None
        cdef object value = None
        cdef bint known = False
        if type(message) is self._kind and PyTuple_Check(message) and PyTuple_GET_SIZE(message) == 5:
            key = <object> PyTuple_GET_ITEM(message, 3)
            value = <object> PyTuple_GET_ITEM(message, 4)
            known = PyBytes_CheckExact(key) and PyBytes_CheckExact(value)
        if known:
            size = OVERHEAD + PyBytes_GET_SIZE(key) + PyBytes_GET_SIZE(value)
        else:
            size = self._weigh(message)
        if self._batch and (self._size + size > self._most_bytes or len(self._batch) == self._most_messages):
            return False
        self._batch.append(message)
        self._size += size
        self._plain = self._plain and known and self._write(message, key, value)
        return True

    cdef bint _write(self, message, key, value) except -1:
        """Write a message behind the others; false: the reference has to encode it."""
        cdef uint64_t offset, timestamp, type_, size = 0
        cdef uint64_t key_size = PyBytes_GET_SIZE(key), value_size = PyBytes_GET_SIZE(value)
        cdef uint8_t *out
        if not (plain(<object> PyTuple_GET_ITEM(message, 0), 0, MAX_OFFSET, &offset)
                and plain(<object> PyTuple_GET_ITEM(message, 1), INT64_MIN, INT64_MAX, &timestamp)
                and plain(<object> PyTuple_GET_ITEM(message, 2), 0, MAX_TYPE, &type_)):
            return False
        if key_size > MAX_KEY or OVERHEAD + key_size + value_size > MAX_SIZE:
            return False
        size = (number_size(offset) + number_size(timestamp) + number_size(type_)
                + field_size(key_size) + field_size(value_size))
        self._reserve(1 + length(size) + size)
        out = self._data + self._used
        out[0] = MESSAGES
        out = number(out + 1, size)
        out = count(out, OFFSET, offset)
        out = count(out, TIMESTAMP, timestamp)
        out = count(out, TYPE, type_)
        out = field(out, KEY, PyBytes_AS_STRING(key), key_size)
        out = field(out, VALUE, PyBytes_AS_STRING(value), value_size)
        self._used = out - self._data
        return True

    cdef int _begin(self) except -1:
        """Write the names."""
        global spare, spare_room
        cdef Py_ssize_t names = field_size(len(self._client)) + field_size(len(self._journal))
        cdef uint8_t *out
        self._drop()
        self._data, self._room = spare, spare_room
        spare, spare_room = NULL, 0
        self._reserve(names)
        out = field(self._data, CLIENT_ID, PyBytes_AS_STRING(self._client), len(self._client))
        field(out, JOURNAL_DIR, PyBytes_AS_STRING(self._journal), len(self._journal))
        self._used = names
        return 0

    cdef int _reserve(self, uint64_t size) except -1:
        """Make room for more bytes."""
        cdef Py_ssize_t due = self._used + <Py_ssize_t> size
        cdef uint8_t *data
        if due > self._room:
            due = due if due > LARGE else max(due, 2 * self._room, SMALL)
            data = <uint8_t *> realloc(self._data, due)
            if data == NULL:
                raise MemoryError
            self._data, self._room = data, due
        return 0

    cdef void _drop(self) noexcept:
        """Give the buffer back, or free it."""
        global spare, spare_room
        if self._data != NULL and spare == NULL and self._room <= LARGE:
            spare, spare_room = self._data, self._room
        else:
            free(self._data)
        self._data = NULL
        self._used = self._room = 0


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
