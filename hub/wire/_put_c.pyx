# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""A PutRequest turned into the journal's own bytes, without an object a message.

The reference is ``frames.open_put_request``, which takes requests apart with protobuf: whatever is not plain here (an
unknown field, a message that the journal has no room for, bytes that are no request) is ``None``, and the reference
says what it is.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from sej.codec._layout cimport HEAD, MAX_KEY, MAX_SIZE, MAX_TYPE, OVERHEAD, put32, put64

__all__ = ["transcode"]

cdef enum:
    CLIENT_ID = 1 << 3 | 2
    JOURNAL_DIR = 2 << 3 | 2
    MESSAGES = 3 << 3 | 2
    OFFSET = 1 << 3
    TIMESTAMP = 2 << 3
    TYPE = 3 << 3
    KEY = 4 << 3 | 2
    VALUE = 5 << 3 | 2

cdef uint64_t MAX_OFFSET = 9223372036854775807


cdef inline bint varint(const uint8_t **at, const uint8_t *end, uint64_t *out) noexcept nogil:
    """Read a number; false where there is none."""
    cdef uint64_t value = 0
    cdef uint8_t byte
    cdef int shift = 0
    cdef const uint8_t *p = at[0]
    while p < end and shift < 64:
        byte = p[0]
        p += 1
        value |= <uint64_t> (byte & 0x7F) << shift
        if byte < 0x80:
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
    if offset > MAX_OFFSET or type > MAX_TYPE or key_size > MAX_KEY or OVERHEAD + key_size + value_size > MAX_SIZE:
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
        elif tag == CLIENT_ID:
            client, client_size = part, size
        elif tag == JOURNAL_DIR:
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
