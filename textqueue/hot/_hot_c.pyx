# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The hot paths, compiled: the same names, results and errors as in ``reference``.

They rely on the global interpreter lock. It is released only around the system calls of a mark. There, the caller's
lock prevents a second mark from running concurrently.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.errno cimport EIO, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

import os
import zlib
from hashlib import blake2b

from textqueue.hot import reference as _reference
from textqueue.format.grammar import RESERVED, STATUS_OF
from textqueue.format.kinds import CLAIMS, ENDS, GIVEN_BACK, IN_MUTEX, UNSEEN, VISIBLE
from textqueue.format.parser import essence as _essence_of

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <time.h>
    #include <sys/stat.h>
    #if defined(_MSC_VER)
    #error "not supported by this compiler: use textqueue.hot.reference"
    #endif
    #include <unistd.h>
    #if defined(__linux__) && defined(F_GETLEASE)
    #define TQ_LEASED(fd) (fcntl((fd), F_GETLEASE) == F_WRLCK)
    #else
    #define TQ_LEASED(fd) 0
    #endif
    static inline int64_t tq_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    /* 1: the path is that file. The modification time is not requested, because that makes the next write slower. */
    static inline int tq_is_at(const char *path, uint64_t device, uint64_t inode) {
    #if defined(__linux__) && defined(STATX_INO)
        struct statx there;
        if (statx(AT_FDCWD, path, AT_STATX_SYNC_AS_STAT, STATX_INO, &there) == 0)
            return there.stx_ino == inode && there.stx_dev_major == (unsigned)((device >> 8) & 0xfff)
                && there.stx_dev_minor == (unsigned)((device & 0xff) | ((device >> 12) & 0xfff00));
        if (errno == ENOENT || errno == ENOTDIR) return 0;
    #endif
        struct stat plain;
        return stat(path, &plain) == 0 && (uint64_t)plain.st_ino == inode && (uint64_t)plain.st_dev == device;
    }
    """
    bint TQ_LEASED(int fd) nogil
    int64_t tq_now() nogil
    bint tq_is_at(const char *path, uint64_t device, uint64_t inode) nogil

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *buffer, size_t size, int64_t position)
    ssize_t pwrite(int fd, const void *buffer, size_t size, int64_t position)
    ssize_t write(int fd, const void *buffer, size_t size)

NOT_DONE = _reference.NOT_DONE
DONE = _reference.DONE
GONE = _reference.GONE
Place = _reference.Place
ends = _reference.ends

DEF _NOT_DONE = 0
DEF _DONE = 1
DEF _GONE = 2

cdef int64_t _FRESH_NS = int(_reference.FRESH_S * 1e9)
cdef Py_ssize_t _FEW_BYTES = _reference.FEW_BYTES
assert (NOT_DONE, DONE, GONE) == (_NOT_DONE, _DONE, _GONE)

cdef enum:
    _NEAR = 4096  # bytes that are read at once to prove messages during a hold
    _HEX = 24  # digits of the hash of an essence
    _LINE_ROOM = 64  # of a ledger line without its tail: kind, position, essence, CRC, blanks

cdef bint _is_head[256]
# Of a ledger line, by its first byte:
cdef bint _is_visible[256]
cdef bint _is_unseen[256]
cdef bint _is_end[256]
cdef bint _is_claim[256]
cdef bint _is_kept[256]
for _byte in range(256):
    _is_head[_byte] = _byte in STATUS_OF
    _is_visible[_byte] = _byte in VISIBLE
    _is_unseen[_byte] = _byte in UNSEEN
    _is_end[_byte] = _byte in ENDS
    _is_claim[_byte] = _byte in CLAIMS
    _is_kept[_byte] = _byte in _reference.ALWAYS
cdef int _GIVEN_BACK = GIVEN_BACK, _IN_MUTEX = IN_MUTEX
cdef Py_ssize_t _LATER_BYTES = _reference.LATER_BYTES
cdef int _DIGITS = _reference.DIGITS, _BLANKS = _reference.BLANKS

# The names of the reserved variables: few and short.
cdef char _reserved[8][16]
cdef int _reserved_size[8]
cdef int _reserved_count = 0
cdef bytes _name
for _name in (name.encode() for name in sorted(RESERVED)):
    assert len(_name) < 16 and _reserved_count < 8
    _reserved_size[_reserved_count] = len(_name)
    memcpy(_reserved[_reserved_count], PyBytes_AS_STRING(_name), len(_name))
    _reserved_count += 1

# The CRC32 of zlib: for the short lines of a ledger, a call of zlib takes five times as long.
cdef uint32_t _crcs[256]
for _byte in range(256):
    _crcs[_byte] = zlib.crc32(bytes([_byte ^ 0xff])) ^ 0xffffff ^ 0xffffffff

cdef char *_scratch = NULL
cdef Py_ssize_t _scratch_size = 0


cdef char *_room(Py_ssize_t size) except NULL:
    """Return working memory, which is valid until the next call into Python."""
    global _scratch, _scratch_size
    cdef char *larger
    if size > _scratch_size:
        larger = <char *>PyMem_RawRealloc(_scratch, 2 * size)
        if larger is NULL:
            raise MemoryError
        _scratch, _scratch_size = larger, 2 * size
    return _scratch


@cython.no_gc  # no cycle: it refers to a source and to bytes, and neither refers to messages
cdef class Core:
    cdef readonly object source
    cdef readonly bytes raw
    cdef readonly Py_ssize_t position
    cdef readonly int64_t epoch
    cdef public bytes claim

    def __cinit__(self):
        self.claim = b""

    def __init__(self, source, bytes raw not None, Py_ssize_t position, int64_t epoch):
        self.source = source
        self.raw = raw
        self.position = position
        self.epoch = epoch

    def moved_to(self, Py_ssize_t position, bytes raw not None, int64_t epoch):
        self.position, self.raw, self.epoch = position, raw, epoch


cdef inline Py_ssize_t _line_end(const char *data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    cdef const char *found = <const char *>memchr(data + at, c"\n", size - at)
    return size if found is NULL else found - data + 1


cdef inline Py_ssize_t _chunk_end(const char *data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    """Return the end of the entry or stray line that begins at a position."""
    cdef bint head = _is_head[<unsigned char>data[at]]
    at = _line_end(data, at, size)
    if head:
        while at < size and data[at] == c" ":
            at = _line_end(data, at, size)
        while at < size and data[at] == c"\\":
            at = _line_end(data, at, size)
    return at


cdef class ready:
    cdef object _make, _reader, _source, _remember
    cdef type _class
    cdef bytes _data
    cdef bint _wanted[256]
    cdef Py_ssize_t _start, _last, _at  # position of the window; in it: of the last message, and after that
    cdef int64_t _epoch, _fresh_until
    cdef bint _yielded, _over, _running

    def __init__(self, make, reader, source, window, controls, list remember):
        self._make, self._reader, self._source, self._remember = make, reader, source, remember
        if isinstance(make, type) and issubclass(make, Core) and make.__init__ is Core.__init__:
            self._class = make
        self._start, self._data, self._epoch = window
        cdef int byte
        for byte in range(256):
            self._wanted[byte] = byte in controls
        self._fresh_until = tq_now() + _FRESH_NS

    @property
    def gi_running(self):
        """Whether another thread runs this iterator, as for a generator."""
        return self._running

    def __iter__(self):
        return self

    def __next__(self):
        cdef const char *data = PyBytes_AS_STRING(self._data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(self._data)
        cdef Py_ssize_t at, end
        cdef bytes raw
        cdef Core core
        if self._running:
            raise ValueError("already executing")
        if self._yielded and (self._last < _FEW_BYTES or tq_now() > self._fresh_until):
            self._look()
        self._yielded = False
        if self._over:
            raise StopIteration
        at = self._at
        while at < size:
            end = _chunk_end(data, at, size)
            if self._wanted[<unsigned char>data[at]]:
                raw = PyBytes_FromStringAndSize(data + at, end - at)
                if self._remember is not None:
                    (<list>self._remember).append(raw)
                self._last, self._at, self._yielded = at, end, True
                if self._class is None:
                    return self._make(self._source, raw, self._start + at, self._epoch)
                core = <Core>self._class.__new__(self._class)
                core.source, core.raw = self._source, raw
                core.position, core.epoch = self._start + at, self._epoch
                return core
            at = end
        self._end(at)
        raise StopIteration

    cdef int _look(self) except -1:
        self._running = True
        try:
            stale = self._reader.stale(self._start + self._last + 1)
        finally:
            self._running = False
        if stale:
            self._end(self._at)
        else:
            self._fresh_until = tq_now() + _FRESH_NS
        return 0

    cdef int _end(self, Py_ssize_t at) except -1:
        self._over = self._running = True
        try:
            self._reader.at(self._start + at)
        finally:
            self._running = False
        return 0


cdef inline bint _ends(const char *raw, Py_ssize_t size, bint more, char after) noexcept nogil:
    """As ``ends``; more: there is a byte after the entry."""
    if raw[size - 1] != c"\n":
        return not more
    if not more or (after != c"\\" and after != c" "):
        return True
    return after == c" " and _variables(raw, size) >= 0


cdef inline Py_ssize_t _variables(const char *raw, Py_ssize_t size) noexcept nogil:
    """Return the position of the newline before the first variable; -1: no variable."""
    cdef Py_ssize_t at = 0
    while True:
        at = _line_end(raw, at, size)
        if at >= size:
            return -1
        if raw[at] == c"\\":
            return at - 1


def variable_at(bytes raw not None, Py_ssize_t index):
    cdef const char *text = PyBytes_AS_STRING(raw)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(raw), at = _variables(text, size) + 1, end, stop
    while at and at < size and index >= 0:
        end = stop = _line_end(text, at, size)
        if text[stop - 1] == c"\n":
            stop -= 1
            if stop > at and text[stop - 1] == c"\r":
                stop -= 1
        if not index:
            return at + 1, max(stop - at - 1, 0)
        index -= 1
        at = end
    return None


def proven(const unsigned char[::1] data, Py_ssize_t start, places):
    cdef Py_ssize_t size = data.shape[0], end = -1, at, stop, length, position
    cdef const char *bytes_ = <const char *>&data[0] if size else NULL
    cdef const char *raw
    for place in places:
        position, length = place[0], PyBytes_GET_SIZE(<bytes?>place[1])
        raw = PyBytes_AS_STRING(<bytes>place[1])
        at = position - start
        stop = at + length
        if at <= end or at < 0 or stop > size or (position and not at) or not length:
            return False
        if memcmp(bytes_ + at, raw, length) or (position and bytes_[at - 1] != c"\n"):
            return False
        if not _ends(raw, length, stop < size, bytes_[stop] if stop < size else 0):
            return False
        end = at
    return True


def essence(bytes raw not None):
    return _essence(raw)


cdef object _essence(bytes raw):
    """As ``textqueue.format.parser.essence``."""
    cdef const char *text = PyBytes_AS_STRING(raw) + 1
    cdef Py_ssize_t size = PyBytes_GET_SIZE(raw) - 1
    cdef Py_ssize_t at = 0, end, stop, done = 0
    cdef const char *found
    cdef char *out
    cdef int name
    if size < 0 or memchr(text, c"\r", size) is not NULL:
        return _essence_of(raw)
    if size and text[size - 1] == c"\n":
        size -= 1
    out = _room(size + 1)
    while True:
        found = <const char *>memchr(text + at, c"\n", size - at)
        end = stop = size if found is NULL else found - text
        while stop > at and (text[stop - 1] == c" " or text[stop - 1] == c"\t"):
            stop -= 1
        name = _reserved_at(text, at + 1, stop) if at and at < stop and text[at] == c"\\" else -1
        if name < 0:
            memcpy(out + done, text + at, stop - at)
            done += stop - at
        else:
            out[done] = c"\\"
            memcpy(out + done + 1, _reserved[name], _reserved_size[name])
            done += 1 + _reserved_size[name]
        if found is NULL:
            return PyBytes_FromStringAndSize(out, done)
        out[done] = c"\n"
        done += 1
        at = end + 1


cdef inline int _reserved_at(const char *text, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """Return the number of the reserved variable; -1: not a reserved variable."""
    cdef Py_ssize_t after
    cdef int number
    while begin < end and (text[begin] == c" " or text[begin] == c"\t"):
        begin += 1
    for number in range(_reserved_count):
        after = begin + _reserved_size[number]
        if after <= end and _same_letters(text + begin, _reserved[number], _reserved_size[number]):
            while after < end and (text[after] == c" " or text[after] == c"\t"):
                after += 1
            if after == end or text[after] == c"=":
                return number
    return -1


cdef inline bint _same_letters(const char *text, const char *name, int size) noexcept nogil:
    cdef int at
    cdef char letter
    for at in range(size):
        letter = text[at]
        if c"A" <= letter <= c"Z":
            letter += 32
        if letter != name[at]:
            return False
    return True


cdef inline uint32_t _crc(const char *data, Py_ssize_t size) noexcept nogil:
    cdef uint32_t crc = 0xffffffff
    cdef Py_ssize_t at
    for at in range(size):
        crc = _crcs[(crc ^ <unsigned char>data[at]) & 0xff] ^ (crc >> 8)
    return ~crc


cdef inline int _decimal(char *out, Py_ssize_t number) noexcept nogil:
    """Write a number, which must not be negative, and return its length."""
    cdef char digits[20]
    cdef int size = 0, at
    while True:
        digits[size] = <char>(48 + number % 10)
        size += 1
        number //= 10
        if not number:
            break
    for at in range(size):
        out[at] = digits[size - 1 - at]
    return size


cdef Py_ssize_t _line(char *out, int control, Py_ssize_t position, const unsigned char *digest, bytes tail) except -1:
    """Write a ledger line into out, which must be large enough, and return its length."""
    cdef const char *digits = "0123456789abcdef"
    cdef Py_ssize_t size = 2 + _decimal(out + 2, position)
    cdef int at
    out[0], out[1], out[size] = <char>control, c" ", c" "
    size += 1
    for at in range(_HEX // 2):
        out[size] = digits[digest[at] >> 4]
        out[size + 1] = digits[digest[at] & 15]
        size += 2
    memcpy(out + size, PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
    size += PyBytes_GET_SIZE(tail)
    cdef uint32_t crc = _crc(out, size)
    out[size] = c" "
    for at in range(8):
        out[size + 1 + at] = digits[(crc >> (28 - 4 * at)) & 15]
    out[size + 9] = c"\n"
    return size + 10


def status_lines(int control, places, bytes tail not None):
    cdef Py_ssize_t room = len(places) * (_LINE_ROOM + PyBytes_GET_SIZE(tail)), size = 0
    cdef char *out = <char *>PyMem_RawMalloc(room + 1)
    cdef bytes digest
    if out is NULL:
        raise MemoryError
    try:
        for place in places:
            digest = blake2b(_essence(place[1]), digest_size=_HEX // 2).digest()
            size += _line(out + size, control, place[0], <const unsigned char *>PyBytes_AS_STRING(digest), tail)
        return PyBytes_FromStringAndSize(out, size)
    finally:
        PyMem_RawFree(out)


cdef inline bint _position(const char *line, Py_ssize_t size, uint64_t *digits, bint *negative) noexcept nogil:
    """Read the position in a ledger line; False: the line has none, or it is too large."""
    cdef Py_ssize_t at = 2, first
    if size < 3:
        return False
    negative[0] = line[at] == c"-"
    first = at = at + negative[0]
    digits[0] = 0
    while at < size and c"0" <= line[at] <= c"9" and at - first < _DIGITS:
        digits[0] = 10 * digits[0] + <uint64_t>(line[at] - c"0")
        at += 1
    return at > first and at < size and line[at] == c" "


cdef bytes _checked(const char *line, Py_ssize_t size):
    """Return a ledger line without its CRC32; None: it is torn or damaged."""
    cdef const char *digits = "0123456789abcdef"
    cdef Py_ssize_t end = size - 9, at
    cdef int blanks = 0
    if end < 0 or line[end] != c" ":
        return None
    cdef uint32_t crc = _crc(line, end)
    for at in range(8):
        if line[end + 1 + at] != digits[(crc >> (28 - 4 * at)) & 15]:
            return None
    for at in range(end):
        blanks += line[at] == c" "
    return PyBytes_FromStringAndSize(line, end) if blanks == _BLANKS else None


def newest(bytes lines not None, claimed):
    cdef const char *data = PyBytes_AS_STRING(lines)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(lines), start, count = 0, spent = 0
    cdef uint64_t digits
    cdef bint negative, found = False, shown = False, over, visible, latest
    cdef int kind
    cdef bytes text
    cdef set decided = set()
    cdef list kept = []
    while end >= 0:
        start = end
        while start and data[start - 1] != c"\n":
            start -= 1
        if not _position(data + start, end - start, &digits, &negative):
            end = start - 1
            continue
        kind, position = <unsigned char>data[start], -<object>digits if negative else <object>digits
        over = kind != _GIVEN_BACK and position in decided
        visible = not shown and _is_visible[kind]
        latest = not found and not (negative and digits) and not _is_unseen[kind]
        if over and not visible and not latest:
            count += 1
            spent += kind != _IN_MUTEX
            end = start - 1
            continue
        text = _checked(data + start, end - start)
        end = start - 1
        if text is None:
            continue
        count += 1
        spent += over and kind != _IN_MUTEX
        if (
            not kept or visible or latest or _is_kept[kind]
            or (_is_end[kind] and (not shown or position in claimed))
        ):
            kept.append(text)
            found = found or latest
            shown = shown or visible
        if _is_end[kind] or _is_claim[kind]:
            decided.add(position)
    return count, spent, kept


cdef class Held:
    cdef object _file, _log
    cdef bytes _path, _tail
    cdef uint64_t _device, _inode
    cdef int64_t _until
    cdef int _fd, _log_fd
    cdef char *_buffer  # the lines that were left for later, then working memory
    cdef Py_ssize_t _buffer_size, _later
    cdef char _near[_NEAR]  # bytes of the file, which no other process changes during the lease
    cdef Py_ssize_t _near_at, _near_size
    cdef readonly bint disturbed, lost
    cdef readonly Py_ssize_t lines, marks, log_bytes, high
    cdef readonly int kind
    cdef bytes _last, _shown
    cdef Py_ssize_t _last_position, _shown_position

    def __init__(self, disk, file, log, *, identity, bytes tail not None, double until):
        self._file, self._log = file, log
        self._fd, self._log_fd = file.fileno(), log.fileno()
        self._path = os.fsencode(file.path)
        self._device, self._inode = identity
        self._tail = tail
        self._until = <int64_t>(until * 1e9)
        self.high = -1

    def __dealloc__(self):
        PyMem_RawFree(self._buffer)

    @property
    def last(self):
        return None if self._last is None else (self._last_position, self._last)

    @property
    def shown(self):
        return None if self._shown is None else (self._shown_position, self._shown)

    def mark(self, Core message not None, int control):
        cdef bytes raw = message.raw, new
        cdef Py_ssize_t size = PyBytes_GET_SIZE(raw)
        cdef int result
        if PyBytes_AS_STRING(raw)[0] != c"-" or tq_now() > self._until:
            return NOT_DONE
        new = PyBytes_FromStringAndSize(NULL, size)  # not from text: Python shares the objects of single bytes
        memcpy(PyBytes_AS_STRING(new), PyBytes_AS_STRING(raw), size)
        PyBytes_AS_STRING(new)[0] = <char>control
        result = self._write(message, new, 0, 1, control, _essence(raw), self._tail, False)
        if result == _DONE:
            self.marks += 1
            self._shown, self._shown_position = new, message.position
        return result

    def variable(self, Core message not None, Py_ssize_t relative, bytes data not None):
        cdef bytes raw = message.raw, new, was, name, tail = self._tail
        cdef Py_ssize_t size = PyBytes_GET_SIZE(raw), count = PyBytes_GET_SIZE(data)
        if relative < 1 or relative > size - count:
            raise ValueError(f"a variable must be within the message, got position {relative} and {count} bytes")
        if tq_now() > self._until:
            return NOT_DONE
        new = PyBytes_FromStringAndSize(PyBytes_AS_STRING(raw), size)
        memcpy(PyBytes_AS_STRING(new) + relative, PyBytes_AS_STRING(data), count)
        was, name = _essence(raw), _essence(new)
        if was != name:
            tail = tail[: PyBytes_GET_SIZE(tail) - 1] + blake2b(was, digest_size=_HEX // 2).hexdigest().encode()
        return self._write(message, new, relative, count, c"v", name, tail, was == name)

    def flush(self):
        cdef int error
        with nogil:
            error = self._flush()
        if error:
            raise OSError(error, os.strerror(error), self._log.path)

    cdef int _flush(self) noexcept nogil:
        """Write the lines that were left for later, and return the number of an error, or 0."""
        cdef Py_ssize_t got, done = 0, size = self._later
        self._later = 0
        while done < size:
            got = write(self._log_fd, self._buffer + done, size - done)
            if got <= 0:
                self.lost = True
                return errno or EIO
            done += got
        self.log_bytes += size
        return 0

    cdef int _write(self, Core message, bytes new, Py_ssize_t relative, Py_ssize_t count, int kind, bytes name,
                    bytes tail, bint later) except -1:
        """Prove the message, write a part of its new bytes, and log that; name is its new essence.

        If ``later``, the ledger line may follow later.
        """
        cdef bytes raw = message.raw, digest
        cdef Py_ssize_t position = message.position, size = PyBytes_GET_SIZE(raw), got, line_size
        cdef Py_ssize_t room = self._later + size + 2 + _LINE_ROOM + PyBytes_GET_SIZE(tail)
        cdef const char *text = PyBytes_AS_STRING(raw)
        cdef const char *changed = PyBytes_AS_STRING(new) + relative
        cdef const char *path = PyBytes_AS_STRING(self._path)
        cdef char *data
        cdef char *line
        cdef char *larger
        cdef int result = _NOT_DONE, error = 0
        if self._buffer_size < room:
            larger = <char *>PyMem_RawRealloc(self._buffer, 2 * room)
            if larger is NULL:
                raise MemoryError
            self._buffer, self._buffer_size = larger, 2 * room
        digest = blake2b(name, digest_size=_HEX // 2).digest()
        line = self._buffer + self._later
        line_size = _line(line, kind, position, <const unsigned char *>PyBytes_AS_STRING(digest), tail)
        data = line + line_size
        with nogil:
            if not TQ_LEASED(self._fd):
                self.disturbed = True
            else:
                got = self._bytes_at(position - 1, size + 2, data)
                if got < 0:
                    error = errno
                elif (got >= size + 1 and data[0] == c"\n" and not memcmp(data + 1, text, size)
                        and _ends(text, size, got > size + 1, data[size + 1])):
                    if pwrite(self._fd, changed, count, position + relative) != count:
                        error = errno or EIO
                    elif not tq_is_at(path, self._device, self._inode):
                        result = _GONE
                    else:
                        self._later += line_size
                        if not later or self._later > _LATER_BYTES:
                            error = self._flush()
                        if not error:
                            result = _DONE
        if result != _DONE or size + 2 > _NEAR:
            self._near_size = 0
        else:
            memcpy(self._near + position + relative - self._near_at, changed, count)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self._path))
        if result == _DONE:
            message.raw = self._last = new
            self._last_position = position
            self.kind = kind
            self.lines += 1
            if position > self.high:
                self.high = position
        return result

    cdef Py_ssize_t _bytes_at(self, Py_ssize_t position, Py_ssize_t size, char *data) noexcept nogil:
        """Copy bytes of the file, and return how many there are; -1: an error. Before the file is a newline."""
        cdef Py_ssize_t got, at = position - self._near_at
        if position == -1:
            data[0] = c"\n"
            got = self._bytes_at(0, size - 1, data + 1)
            return got + (got >= 0)
        if size > _NEAR:
            return pread(self._fd, data, size, position)
        if at < 0 or at + size > self._near_size:
            got = pread(self._fd, self._near, _NEAR, position)
            if got < 0:
                return got
            self._near_at, self._near_size, at = position, got, 0
        got = min(size, self._near_size - at)
        memcpy(data, self._near + at, got)
        return got
