# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""One edit of one message, compiled: the same names, results and errors as in ``single``.

The global interpreter lock is released around the system calls.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

import os
import signal
import zlib
from hashlib import blake2b

from textqueue.format.grammar import STATUS_OF
from textqueue.format.kinds import GIVEN_BACK, IN_MUTEX, MARKS, UNSEEN
from textqueue.format.lease import claimant
from textqueue.format.mutex import holder_of
from textqueue.hot import essence
from textqueue.hot import reference as _reference
from textqueue.hot import single as _single

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <sched.h>
    #include <sys/file.h>
    #include <sys/stat.h>
    #include <time.h>
    #if defined(_MSC_VER)
    #error "not supported by this compiler: use textqueue.hot.single"
    #endif
    #include <unistd.h>
    #if defined(__linux__) && defined(F_SETLEASE)
    #define TQ_LEASED(fd) (fcntl((fd), F_GETLEASE) == F_WRLCK)
    #define TQ_OPEN(path) open((path), O_RDWR | O_NONBLOCK | O_CLOEXEC)
    #define TQ_MTIME_NS(found) ((int64_t)(found).st_mtim.tv_sec * 1000000000 + (found).st_mtim.tv_nsec)
    static inline int tq_lease(int fd, int number) {
        return fcntl(fd, F_SETSIG, number) == 0 && fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
    }
    #else  /* without a lease no edit is made */
    #define TQ_LEASED(fd) 0
    #define TQ_OPEN(path) (-1)
    #define TQ_MTIME_NS(found) 0
    static inline int tq_lease(int fd, int number) { return 0; }
    #endif
    static inline int64_t tq_now(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    """
    struct stat_t "stat":
        uint64_t st_ino
        uint64_t st_dev
        int64_t st_size
    bint TQ_LEASED(int fd) nogil
    int TQ_OPEN(const char *path) nogil
    int64_t TQ_MTIME_NS(stat_t found) nogil
    int64_t tq_now() nogil
    bint tq_lease(int fd, int number) nogil
    int c_fstat "fstat"(int fd, stat_t *found) nogil
    int c_stat "stat"(const char *path, stat_t *found) nogil
    int flock(int fd, int how) nogil
    int sched_yield() nogil
    int LOCK_EX, LOCK_NB, LOCK_UN, EWOULDBLOCK

cdef extern from "unistd.h" nogil:
    ssize_t pread(int fd, void *buffer, size_t size, int64_t position)
    ssize_t pwrite(int fd, const void *buffer, size_t size, int64_t position)
    ssize_t write(int fd, const void *buffer, size_t size)
    int close(int fd)

DEF _NOT_DONE = 0
DEF _DONE = 1
DEF _BUSY = 3
assert (_reference.NOT_DONE, _reference.DONE, _single.BUSY) == (_NOT_DONE, _DONE, _BUSY)

BUSY = _single.BUSY

cdef enum:
    _NEAR = 4096
    _SPIN_NS = 40000  # an edit takes less time than this
    _MOST_YIELDS = 16  # after that, the holder may wait for this processor
cdef Py_ssize_t _LINES_BYTES = _single.LINES_BYTES
assert _single.NEAR_BYTES == _NEAR
cdef int _SIGNAL = signal.SIGURG  # see sej.system.locks.lease
cdef object _ends = _reference.ends, _new_tuple = tuple.__new__, _Last = _single.Last
cdef int _TAKEN = _single.TAKEN, _BACK = _single.BACK
cdef int _DIGITS = _reference.DIGITS, _BLANKS = _reference.BLANKS, _MOST_LINES = _single.MOST_LINES
cdef int _GIVEN_BACK = GIVEN_BACK, _IN_MUTEX = IN_MUTEX

cdef int _meanings[256]  # of a ledger line, by its kind; 0: not understood
cdef bint _is_mark[256]
cdef bint _is_unseen[256]
cdef bint _is_head[256]
cdef uint32_t _crcs[256]  # the CRC32 of zlib
for _byte in range(256):
    _meanings[_byte] = _single.MEANINGS.get(bytes([_byte]), 0)
    _is_mark[_byte] = _byte in MARKS
    _is_unseen[_byte] = _byte in UNSEEN
    _is_head[_byte] = _byte in STATUS_OF
    _crcs[_byte] = zlib.crc32(bytes([_byte ^ 0xff])) ^ 0xffffff ^ 0xffffffff


cdef inline bint _is_sound(const char *line, Py_ssize_t end) noexcept nogil:
    """Return whether the CRC32 after a blank at end is that of the bytes before it."""
    cdef const char *digits = "0123456789abcdef"
    cdef uint32_t crc = 0xffffffff
    cdef Py_ssize_t at
    for at in range(end):
        crc = _crcs[(crc ^ <unsigned char>line[at]) & 0xff] ^ (crc >> 8)
    crc = ~crc
    for at in range(8):
        if line[end + 1 + at] != digits[(crc >> (28 - 4 * at)) & 15]:
            return False
    return line[end] == c" "


def known(bytes lines not None, tuple token, last):
    cdef const char *data = PyBytes_AS_STRING(lines)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(lines), start = 0, stop, at
    cdef Py_ssize_t blanks[8]
    cdef int count = 0, found, meaning
    cdef const char *line
    cdef const char *seen = NULL  # the line of the last edit, and its blanks
    cdef Py_ssize_t name_at = 0, name_end = 0, owner_at = 0, owner_end = 0
    cdef int64_t position, last_position = last[1]
    cdef dict changed = {}
    if size and data[size - 1] != c"\n":
        return None
    while start < size:
        line = data + start
        stop = 0
        found = 0
        while line[stop] != c"\n":
            if line[stop] == c" ":
                if found <= _BLANKS:
                    blanks[found] = stop
                found += 1
            stop += 1
        count += 1
        meaning = _meanings[<unsigned char>line[0]]
        if count > _MOST_LINES or found != _BLANKS + 1 or not meaning or blanks[0] != 1 or blanks[_BLANKS] != stop - 9:
            return None
        if not _is_sound(line, stop - 9) or blanks[1] == 2 or blanks[1] - 2 >= _DIGITS:
            return None
        position = 0
        for at in range(2, blanks[1]):
            if not c"0" <= line[at] <= c"9":
                return None
            position = 10 * position + line[at] - c"0"
        changed[position] = max(meaning, <int>changed.get(position, 0))
        start += stop + 1
        if not _is_unseen[<unsigned char>line[0]] or position == last_position:
            seen, last_position = line, position
            name_at, name_end, owner_at, owner_end = blanks[1] + 1, blanks[2], blanks[5] + 1, blanks[6]
    if count:
        inode, state = int(line[blanks[2] + 1 : blanks[3]]), line[blanks[3] + 1 : blanks[5]].split(b" ")
        token = abs(inode), int(state[0]), int(state[1])
    if seen is not NULL:
        name, owner = seen[name_at:name_end], seen[owner_at:owner_end]
        last = _new_tuple(_Last, (<unsigned char>seen[0], last_position, name, owner, b""))
    return token, last, changed


cdef Py_ssize_t _line_end(const char *data, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
    cdef const char *found = <const char *>memchr(data + at, c"\n", size - at)
    return size if found is NULL else found - data + 1


cdef bint _holds(const char *data, Py_ssize_t size, last) except -1:
    cdef Py_ssize_t at
    cdef int kind = last[0]
    cdef bytes raw
    if not size or not _is_head[<unsigned char>data[0]]:
        return False
    at = _line_end(data, 0, size)
    while at < size and data[at] == c" ":
        at = _line_end(data, at, size)
    while at < size and data[at] == c"\\":
        at = _line_end(data, at, size)
    if at >= _NEAR:
        return False
    raw = PyBytes_FromStringAndSize(data, at)
    if blake2b(essence(raw), digest_size=12).hexdigest().encode() != last[2]:
        return False
    if _is_mark[kind]:
        return _is_mark[<unsigned char>data[0]]
    if kind == _GIVEN_BACK:
        return data[0] == <char>_GIVEN_BACK
    return kind != _IN_MUTEX or claimant(last[3]) == holder_of(raw)


cdef class Single:
    cdef object _lock, _log
    cdef bytes _path, _real_path
    cdef int _lock_fd, _log_fd, _fd
    cdef stat_t _there  # the state of the file, when it was opened and after the edit
    cdef char _near[_NEAR]
    cdef Py_ssize_t _near_at, _near_size
    cdef readonly tuple token
    cdef readonly Py_ssize_t chosen, line_bytes

    def __init__(self, disk, lock, log, path, real_path):
        self._lock, self._log = lock, log
        self._lock_fd, self._log_fd = lock.fileno(), log.fileno()
        self._path, self._real_path = os.fsencode(path), os.fsencode(real_path)
        self._fd = -1
        self.token = (0, 0, 0), (0, 0, 0)

    def edit(self, Py_ssize_t seen, tuple token, last, choices, *, bint ordered):
        cdef int64_t size = -1
        cdef bint locked
        cdef int lock_fd = self._lock_fd
        if self._lock.fileno() != lock_fd or self._log.fileno() != self._log_fd:
            raise ValueError("the lock and the ledger must be open")
        try:
            with nogil:
                locked = self._take()
                if locked and c_fstat(self._log_fd, &self._there) == 0:
                    size = self._there.st_size
            if not locked:
                return _BUSY
            return self._edit(seen, size, token, last, choices, ordered)
        finally:
            with nogil:
                if self._fd >= 0:
                    close(self._fd)
                self._fd = -1
                flock(lock_fd, LOCK_UN)

    cdef bint _take(self) noexcept nogil:
        """Take the lock. It is free again soon if another process makes such an edit."""
        cdef int64_t end = 0
        cdef int yields = 0
        while flock(self._lock_fd, LOCK_EX | LOCK_NB):
            if errno != EWOULDBLOCK and errno != EINTR:
                return False
            if not end:
                end = tq_now() + _SPIN_NS
            elif tq_now() > end:
                if yields == _MOST_YIELDS:
                    return False
                yields += 1
                sched_yield()
        return True

    cdef int _edit(self, int64_t seen, int64_t size, tuple token, last, choices, bint ordered) except -1:
        cdef dict changed = None
        cdef Py_ssize_t number
        if size != seen:
            if size < seen or size - seen > _LINES_BYTES:
                return _NOT_DONE
            found = known(self._lines(seen, size - seen), token, last)
            if found is None:
                return _NOT_DONE
            token, last, changed = found
        if not self._open(token) or not self._is_in(last, choices):
            return _NOT_DONE
        number = self._first(choices, changed, ordered)
        if number < 0:
            return _NOT_DONE
        return self._write(choices[number], number, token, changed is None)

    cdef bytes _lines(self, int64_t seen, Py_ssize_t size):
        cdef bytes lines = PyBytes_FromStringAndSize(NULL, size)
        cdef Py_ssize_t got = pread(self._log_fd, PyBytes_AS_STRING(lines), size, seen)
        return lines if got == size else b"?"

    cdef bint _open(self, tuple token) except -1:
        """Open the file with a lease, and return whether it is in a state."""
        cdef uint64_t inode = token[0]
        cdef int64_t size = token[1], mtime_ns = token[2]
        cdef const char *path = PyBytes_AS_STRING(self._real_path)
        cdef bint same
        with nogil:
            self._near_size = 0
            self._fd = TQ_OPEN(path)
            same = (
                self._fd >= 0 and tq_lease(self._fd, _SIGNAL) and c_fstat(self._fd, &self._there) == 0
                and self._there.st_ino == inode and self._there.st_size == size
                and TQ_MTIME_NS(self._there) == mtime_ns
            )
        return same

    cdef bint _is_in(self, last, choices) except -1:
        cdef int64_t position = last[1], first = choices[0][0]
        cdef bytes raw = last[4]
        cdef Py_ssize_t size = PyBytes_GET_SIZE(raw), got
        cdef char *data
        if 0 < first <= position < first + _NEAR // 2:
            self._bytes_at(first - 1, 1, &got)  # one read for both
        if size and size <= _NEAR:
            data = self._bytes_at(position, size, &got)
            if got >= size and not memcmp(data, PyBytes_AS_STRING(raw), size):
                return True
        data = self._bytes_at(position, _NEAR, &got)
        return _holds(data, min(got, _NEAR), last)

    cdef char *_bytes_at(self, int64_t position, Py_ssize_t size, Py_ssize_t *got) except NULL:
        """Return bytes of the file, at most _NEAR, and how many there are: fewer than size only at its end."""
        cdef int64_t at = position - self._near_at
        if not self._near_size or at < 0 or (at + size > self._near_size and self._near_size == _NEAR):
            with nogil:
                self._near_size = pread(self._fd, self._near, _NEAR, position)
            self._near_at, at = position, 0
            if self._near_size < 0:
                self._near_size = 0
                raise OSError(errno, os.strerror(errno), os.fsdecode(self._real_path))
        got[0] = max(self._near_size - at, 0)
        return self._near + at

    cdef Py_ssize_t _first(self, choices, dict changed, bint ordered) except -2:
        cdef Py_ssize_t number = -1, size, got, before
        cdef int64_t position, back = -1
        cdef int meaning
        cdef char *data
        cdef const char *text
        if changed is not None and ordered:
            back = min([at for at, one in changed.items() if one == _BACK], default=-1)
        for choice in choices:
            number += 1
            position, raw = choice[0], <bytes>choice[1]
            size = PyBytes_GET_SIZE(raw)
            meaning = 0 if changed is None else changed.get(position, 0)
            if 0 <= back <= position or meaning > _TAKEN or size + 2 > _NEAR:
                return -1
            if meaning:
                continue
            before = 1 if position else 0
            data = self._bytes_at(position - before, before + size + 1, &got)
            text = PyBytes_AS_STRING(<bytes>raw)
            if got < before + size or (before and data[0] != c"\n") or memcmp(data + before + 1, text + 1, size - 1):
                return -1
            if not _ends(raw, PyBytes_FromStringAndSize(data + before + size, 1 if got > before + size else 0)):
                return -1
            if data[before] == text[0]:
                return number
            if data[before] != c"=" and data[before] != c"!" and data[before] != c"#":
                return -1
        return -1

    cdef int _write(self, choice, Py_ssize_t number, tuple token, bint fresh) except -1:
        cdef int64_t position = choice[0]
        cdef bytes raw = choice[1], new = choice[2], head = choice[3], owner = choice[4]
        cdef const char *old = PyBytes_AS_STRING(raw)
        cdef const char *text = PyBytes_AS_STRING(new)
        cdef const char *path = PyBytes_AS_STRING(self._path)
        cdef Py_ssize_t start = 0, end = PyBytes_GET_SIZE(raw), done = 0, got
        cdef uint64_t inode = self._there.st_ino, device = self._there.st_dev
        cdef int error = 0
        cdef bint there = False, may
        if end != PyBytes_GET_SIZE(new):
            raise ValueError("an edit must not change the length of a message")
        while start < end and old[start] == text[start]:
            start += 1
        while end > start and old[end - 1] == text[end - 1]:
            end -= 1
        with nogil:
            may = TQ_LEASED(self._fd)
            if may:
                if end > start and pwrite(self._fd, text + start, end - start, position + start) != end - start:
                    error = errno or EIO
                elif c_stat(path, &self._there) == 0:
                    there = self._there.st_ino == inode and self._there.st_dev == device
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(self._path))
        if not may or not there:
            return _NOT_DONE
        now = self._there.st_ino, self._there.st_size, TQ_MTIME_NS(self._there)
        cdef bytes line = b"%s %d %d %d %s" % (head, now[0], now[1], now[2], owner)
        line = b"%s %08x\n" % (line, zlib.crc32(line))
        cdef Py_ssize_t size = PyBytes_GET_SIZE(line)
        text = PyBytes_AS_STRING(line)
        with nogil:
            while done < size:
                got = write(self._log_fd, text + done, size - done)
                if got <= 0:
                    error = errno or EIO
                    pwrite(self._fd, old + start, end - start, position + start)  # see _single.Single
                    break
                done += got
        if error:
            raise OSError(error, os.strerror(error), self._log.path)
        self.token = token, now
        self.chosen = number
        self.line_bytes = size if fresh else 0
        return _DONE
