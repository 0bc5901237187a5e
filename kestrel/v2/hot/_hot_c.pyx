# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=True
"""The calls of a Kestrel 2 queue that are made for each item, compiled: the same as ``reference``, which explains it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_NoMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kestrel.hot._hot_c cimport Appender, Fuse, get32, get64, put32, put64, wall_ms
from sej.codec._codec_c cimport check_fork

from collections import deque as _deque
from functools import update_wrapper as _update_wrapper

from kestrel.limits import wall_clock_ms as _wall_clock_ms
from kestrel.v2.hot import reference as _reference
from kestrel.v2.items import ENTRY_BYTES as _ENTRY_BYTES
from kestrel.v2.items import Item as _Item
from kestrel.v2.items import check_xid as _check_xid
from kestrel.v2.items import next_xid as _next_xid

cdef extern from *:
    PyTypeObject PyTuple_Type
    PyObject *new_tuple "kestrel_tuple"(PyTypeObject *type, Py_ssize_t size)
    void decref "kestrel_decref"(PyObject *value)

cdef enum:
    REMOVE = 1
    ADDX = 2
    UNREMOVE = 5
    CONFIRM_REMOVE = 6
    REMOVE_TENTATIVE_XID = 9
    ADDX_BLOCK = 16
    ADDX_HEAD = 21
    XID_OP = 5
    SHORT = 1024

cdef int64_t ENTRY_BYTES = _ENTRY_BYTES
cdef int64_t NO_LIMIT = 1 << 62

cdef PyTypeObject *ITEM = <PyTypeObject *> _Item
cdef uint8_t REMOVED = REMOVE


cdef inline object item_of(tuple row):
    """The item that a row is; never tracked by the collector: it refers to numbers and bytes only."""
    cdef PyObject *raw = new_tuple(ITEM, 3)
    cdef object item, value
    cdef Py_ssize_t at
    if raw == NULL:
        PyErr_NoMemory()
    item = <object> raw
    for at in range(3):
        value = <object> PyTuple_GET_ITEM(row, at + 1)
        Py_INCREF(value)
        PyTuple_SET_ITEM(item, at, value)
    decref(raw)
    return item


cdef inline tuple new_row(int64_t number, bytes data, object added, int64_t expiry):
    """A row, as untracked as an item."""
    cdef PyObject *raw
    cdef object at = number, expires = expiry, xid = 0
    raw = new_tuple(&PyTuple_Type, 5)
    if raw == NULL:
        PyErr_NoMemory()
    cdef tuple row = <tuple> raw
    Py_INCREF(at)
    PyTuple_SET_ITEM(row, 0, at)
    Py_INCREF(data)
    PyTuple_SET_ITEM(row, 1, data)
    Py_INCREF(added)
    PyTuple_SET_ITEM(row, 2, added)
    Py_INCREF(expires)
    PyTuple_SET_ITEM(row, 3, expires)
    Py_INCREF(xid)
    PyTuple_SET_ITEM(row, 4, xid)
    decref(raw)
    return row


cdef int add_addx(Appender appender, bytes data, int64_t now) except -1:
    """Append an ADDX without expiry. A short one is made on the stack, which saves 130 instructions."""
    cdef uint8_t short[SHORT]
    cdef uint8_t *p = short
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef bytes made
    if ADDX_HEAD + size > SHORT:
        made = PyBytes_FromStringAndSize(NULL, ADDX_HEAD + size)
        p = <uint8_t *> PyBytes_AS_STRING(made)
    p[0] = ADDX
    put32(p + 1, <int32_t> (ADDX_BLOCK + size))
    put64(p + 5, now)
    put64(p + 13, 0)
    memcpy(p + ADDX_HEAD, PyBytes_AS_STRING(data), size)
    return appender.add(p, ADDX_HEAD + size, False)


cdef inline int add_xid(Appender appender, uint8_t opcode, int32_t xid) except -1:
    cdef uint8_t operation[XID_OP]
    operation[0] = opcode
    put32(operation + 1, xid)
    return appender.add(operation, XID_OP, False)


cdef class Waiting:
    """The entries that wait; see the reference."""

    cdef readonly object memory
    cdef public int64_t memory_bytes
    cdef public int64_t behind
    cdef public int64_t behind_bytes
    cdef public int64_t enough
    cdef public bint expiring

    cdef public int64_t limit_bytes
    cdef public object place
    cdef object _push  # these methods of memory, found once: saves 100 instructions for each call
    cdef object _pull
    cdef object _spill
    cdef object _fill

    def __init__(self, int64_t limit_bytes, *, spill, fill):
        self.memory = _deque()
        self._push, self._pull = self.memory.append, self.memory.popleft
        self.limit_bytes = limit_bytes
        self._spill = spill
        self._fill = fill

    cdef tuple pop(self):
        cdef tuple row = self._pull()
        self.memory_bytes -= PyBytes_GET_SIZE(row[1])
        return row

    def append(self, tuple row not None):
        """Add at the end: in memory, or only counted if that is full."""
        if row[3]:
            self.expiring = True
        if self.behind or self.memory_bytes + ENTRY_BYTES * <int64_t> len(self.memory) >= self.limit_bytes:
            self._spill(row)
        else:
            self._push(row)
            self.memory_bytes += PyBytes_GET_SIZE(row[1])

    def appendleft(self, tuple row not None):
        """Put back at the head."""
        self.memory.appendleft(row)
        self.memory_bytes += PyBytes_GET_SIZE(row[1])

    def popleft(self):
        """Take the head."""
        if not self.memory:
            self._fill()
        return self.pop()


cdef class Reserving:
    """The open transactions, and what is counted; see the reference."""

    cdef public dict open
    cdef public int64_t last_xid
    cdef public int64_t added
    cdef public int64_t taken_add_time

    def __init__(self):
        self.open = {}


cdef class _Replay:
    """One block on its way into a queue."""

    cdef Reserving reserving
    cdef Waiting waiting
    cdef object piece
    cdef int64_t count  # of the entries in memory

    cdef inline int add(self, const uint8_t *p, int32_t size, int64_t position) except -1:
        """Append the entry of an ADDX."""
        cdef Waiting waiting = self.waiting
        cdef int64_t expiry = get64(p + 13)
        size -= ADDX_BLOCK
        if expiry:
            waiting.expiring = True
        if waiting.behind:
            waiting.behind += 1
            waiting.behind_bytes += size
        else:
            data = PyBytes_FromStringAndSize(<const char *> p + ADDX_HEAD, size)
            row = new_row(self.reserving.added, data, get64(p + 5), expiry)
            if waiting.memory_bytes + ENTRY_BYTES * self.count < waiting.limit_bytes:
                waiting._push(row)
                waiting.memory_bytes += size
                self.count += 1
            else:
                waiting.place = (self.piece, position)
                waiting._spill(row)
        self.reserving.added += 1
        return 0

    cdef inline tuple take(self):
        """Take the head; None if nothing waits."""
        cdef Waiting waiting = self.waiting
        cdef tuple row
        if self.count:
            row = waiting.pop()
            self.count -= 1
        elif waiting.behind:
            waiting._fill()
            row = waiting.pop()
            self.count = len(waiting.memory)
        else:
            return None
        if row[2] is not None:
            self.reserving.taken_add_time = row[2]
        return row

    cdef int end(self, uint8_t opcode, int32_t number) except -1:
        """Apply an operation that has an xid."""
        cdef Reserving reserving = self.reserving
        cdef tuple row
        xid = number
        if opcode == REMOVE_TENTATIVE_XID:
            reserving.last_xid = number
            row = self.take()
            if row is not None:
                reserving.open[xid] = (row[0], row[1], row[2], row[3], 0) if row[4] else row
        else:
            row = reserving.open.pop(xid, None)
            if opcode == UNREMOVE and row is not None:
                self.waiting.memory.appendleft(row)
                self.waiting.memory_bytes += PyBytes_GET_SIZE(row[1])
                self.count += 1
        return 0


def replay_block(Reserving reserving, Waiting waiting, piece, bytes data not None, int64_t base, int64_t at, dialect):
    """Apply the whole operations of a block, up to the first one that the caller must look at."""
    cdef const uint8_t *start = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *p
    cdef int64_t left = PyBytes_GET_SIZE(data) - at, size
    cdef _Replay replay = _Replay()
    replay.reserving, replay.waiting, replay.piece, replay.count = reserving, waiting, piece, len(waiting.memory)
    while left > 0:
        p = start + at
        if p[0] == ADDX:
            if left < ADDX_HEAD:
                break
            size = get32(p + 1)
            if size < ADDX_BLOCK or size > left - 5:
                break
            replay.add(p, <int32_t> size, base + at)
            size += 5
        elif p[0] == REMOVE:
            replay.take()
            size = 1
        elif p[0] == UNREMOVE or p[0] == CONFIRM_REMOVE or p[0] == REMOVE_TENTATIVE_XID:
            if left < XID_OP:
                break
            replay.end(p[0], get32(p + 1))
            size = XID_OP
        else:
            break
        at += size
        left -= size
    return at


cdef class Changes:
    """What an open queue holds, and the changes of one item; see the reference."""

    cdef readonly Appender appender
    cdef readonly Fuse fuse
    cdef readonly Waiting waiting
    cdef readonly Reserving reserving
    cdef public dict reserved_at
    cdef public int64_t plain_below
    cdef public int64_t empty_below
    cdef public int64_t behind_below
    cdef int64_t _now  # of the last item that was added the short way
    cdef object _now_object

    def __init__(self, Appender appender not None, Waiting waiting not None, Reserving reserving not None):
        self.appender = appender
        self.fuse = appender.fuse
        self.waiting = waiting
        self.reserving = reserving
        self.reserved_at = {}

    cdef inline bint may_add(self) except -1:
        cdef Waiting waiting = self.waiting
        cdef int64_t below = self.plain_below
        if waiting.behind:
            below = self.behind_below
        elif below != self.empty_below and not waiting.memory:
            below = self.empty_below
        return self.appender.entry.size < below

    cdef inline bint may_take(self) except -1:
        cdef Py_ssize_t count = len(self.waiting.memory)
        cdef int64_t below = self.plain_below if count > 1 else self.empty_below
        if self.waiting.behind:
            below = self.behind_below if count > self.waiting.enough else 0
        return count > 0 and self.appender.entry.size + XID_OP < below

    cdef int add_one(self, bytes data, int64_t now) except -1:
        add_addx(self.appender, data, now)
        if self.waiting.behind:
            self.waiting.behind += 1
            self.waiting.behind_bytes += PyBytes_GET_SIZE(data)
        else:
            if now != self._now or self._now_object is None:
                self._now = now
                self._now_object = now  # shared by the items of a millisecond: saves 130 instructions, and 32 bytes
            self.waiting._push(new_row(self.reserving.added, data, self._now_object, 0))
            self.waiting.memory_bytes += PyBytes_GET_SIZE(data)
        self.reserving.added += 1
        self.fuse.live = True
        return 0

    cdef tuple take(self, bint expired):
        self.appender.add(&REMOVED, 1, False)
        cdef tuple row = self.waiting.pop()
        if not expired and row[2] is not None:
            self.reserving.taken_add_time = row[2]
        self.fuse.live = True
        return row

    cdef object hold(self, object now):
        """Return the xid; the row is ``open[xid]``."""
        cdef Reserving reserving = self.reserving
        cdef int64_t number = reserving.last_xid + 1
        cdef object xid = number
        if not 0 < number <= INT32_MAX or xid in reserving.open:
            xid = _next_xid(reserving.last_xid, reserving.open)
            number = xid
        add_xid(self.appender, REMOVE_TENTATIVE_XID, <int32_t> number)
        cdef tuple row = self.waiting.pop()
        reserving.last_xid = number
        reserving.open[xid] = row
        if now is not None:
            self.reserved_at[xid] = now
        if row[2] is not None:
            reserving.taken_add_time = row[2]
        self.fuse.live = True
        return xid

    cdef int end(self, object xid) except -1:
        add_xid(self.appender, CONFIRM_REMOVE, <int32_t> xid)
        del self.reserving.open[xid]
        if self.reserved_at:
            self.reserved_at.pop(xid, None)
        self.fuse.live = True
        return 0

    def add_plain(self, bytes data not None, int64_t now):
        """Add one item without an expiry."""
        self.add_one(data, now)

    def remove(self, *, bint expired=False):
        """Take the head, for good."""
        return self.take(expired)

    def reserve(self, now=None):
        """Take the head as a transaction; return its id, and the row."""
        xid = self.hold(now)
        return xid, self.reserving.open[xid]

    def confirm(self, xid):
        """End an open transaction."""
        self.end(xid)


cdef class Calls:
    """The calls of a queue that are made for each item; see the reference."""

    cdef public int64_t _waiters
    cdef public int64_t _transactions
    cdef readonly Changes _changes
    cdef readonly object _changed
    cdef readonly object _guard
    cdef object _long_put
    cdef object _long_get
    cdef object _long_reserve
    cdef bint _plain
    cdef int64_t _most_items
    cdef int64_t _most_bytes
    cdef int64_t _max_item_bytes
    cdef object _now_ms

    def __init__(
        self, Changes changes not None, changed, object guard not None, *, put, get, reserve, bint plain,
        int64_t most_items, int64_t most_bytes, int64_t max_item_bytes, now_ms,
    ):
        self._changes = changes
        self._changed = changed
        self._guard = guard
        self._long_put, self._long_get, self._long_reserve = put, get, reserve
        self._plain = plain
        self._most_items, self._most_bytes = most_items, most_bytes
        self._max_item_bytes = max_item_bytes
        self._now_ms = now_ms

    cdef inline bint is_short(self) except -1:
        return self._plain and self._changes.fuse.live and self._changes.may_take()

    def put(self, data, *, expiry=0):
        """Add an item at the end; see the reference."""
        cdef Changes changes = self._changes
        cdef Waiting waiting = changes.waiting
        cdef object guard
        if self._plain and PyBytes_CheckExact(data) and not expiry and PyBytes_GET_SIZE(data) <= self._max_item_bytes:
            guard = self._guard
            check_fork()
            guard.acquire()
            try:
                if (
                    changes.may_add()
                    and waiting.memory_bytes + waiting.behind_bytes < self._most_bytes
                    and (self._most_items == NO_LIMIT or len(waiting.memory) + waiting.behind < self._most_items)
                ):
                    changes.add_one(<bytes> data, wall_ms() if self._now_ms is _wall_clock_ms else self._now_ms())
                    if self._waiters:
                        self._changed.notify()
                    return None
            finally:
                guard.release()
        self._long_put(data, expiry)

    def get(self, timeout=0.0):
        """Take the head; see the reference."""
        cdef object guard = self._guard
        check_fork()
        guard.acquire()
        try:
            if self.is_short():
                return item_of(self._changes.take(False))
        finally:
            guard.release()
        return self._long_get(timeout)

    def reserve(self, timeout=0.0):
        """Take the head until confirm; see the reference."""
        cdef object guard = self._guard
        check_fork()
        guard.acquire()
        try:
            if self.is_short():
                self._transactions += 1
                xid = self._changes.hold(None)
                return xid, item_of(<tuple> self._changes.reserving.open[xid])
        finally:
            guard.release()
        return self._long_reserve(timeout)

    def confirm(self, xid):
        """The reserved item is done with. False if no such transaction is open."""
        cdef object guard = self._guard
        check_fork()
        guard.acquire()
        try:
            if xid in self._changes.reserving.open:
                self._changes.end(xid)
                return True
            self._changes.fuse.require_open()
            _check_xid(xid)
            return False
        finally:
            guard.release()


for _name in ("put", "get", "reserve", "confirm"):  # their documentation and types
    _update_wrapper(getattr(Calls, _name), getattr(_reference.Calls, _name))
