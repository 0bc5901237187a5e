# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=True
"""The calls of a Kestrel 2 queue that are made for each item, compiled: the same as ``reference``, which explains it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_NoMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kestrel.hot._hot_c cimport Appender, Live, get32, get64, put32, put64, wall_ms
from sej._mutex_c cimport Mutex

from collections import deque as _deque
from functools import update_wrapper as _update_wrapper

from kestrel.clock import wall_clock_ms as _wall_clock_ms
from kestrel.v2.hot import reference as _reference
from kestrel.v2.items import ENTRY_BYTES as _ENTRY_BYTES
from kestrel.v2.items import Item as _Item
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

cdef int64_t ENTRY_BYTES = _ENTRY_BYTES
cdef int64_t NO_LIMIT = 1 << 62

cdef PyTypeObject *ITEM = <PyTypeObject *> _Item
cdef bytes REMOVED = b"\x01"


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


cdef inline tuple new_row(int64_t number, bytes data, int64_t add_time, int64_t expiry):
    """A row, as untracked as an item."""
    cdef PyObject *raw
    cdef object at = number, added = add_time, expires = expiry, xid = 0
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


cdef inline bytes xid_operation(uint8_t opcode, int32_t xid):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, XID_OP)
    cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(made)
    p[0] = opcode
    put32(p + 1, xid)
    return made


cdef class Waiting:
    """The entries that wait; see the reference."""

    cdef public object memory
    cdef public int64_t memory_bytes
    cdef public int64_t behind
    cdef public int64_t behind_bytes
    cdef public bint expiring

    cdef public int64_t limit_bytes
    cdef public object place

    def __init__(self, int64_t limit_bytes):
        self.memory = _deque()
        self.limit_bytes = limit_bytes

    cdef tuple pop(self):
        cdef tuple row = self.memory.popleft()
        self.memory_bytes -= PyBytes_GET_SIZE(row[1])
        return row

    def popleft(self):
        """Take the head."""
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

    cdef Reserving machine
    cdef Waiting backlog
    cdef object piece
    cdef int64_t count  # of the entries in memory

    cdef inline int add(self, const uint8_t *p, int32_t size, int64_t position) except -1:
        """Append the entry of an ADDX."""
        cdef Waiting backlog = self.backlog
        cdef int64_t expiry = get64(p + 13)
        size -= ADDX_BLOCK
        if expiry:
            backlog.expiring = True
        if backlog.behind:
            backlog.behind += 1
            backlog.behind_bytes += size
        else:
            data = PyBytes_FromStringAndSize(<const char *> p + ADDX_HEAD, size)
            row = new_row(self.machine.added, data, get64(p + 5), expiry)
            if backlog.memory_bytes + ENTRY_BYTES * self.count < backlog.limit_bytes:
                backlog.memory.append(row)
                backlog.memory_bytes += size
                self.count += 1
            else:
                backlog.place = (self.piece, position)
                backlog.append(row)
        self.machine.added += 1
        return 0

    cdef inline tuple take(self):
        """Take the head; None if nothing waits."""
        cdef Waiting backlog = self.backlog
        cdef tuple row
        if self.count:
            row = backlog.pop()
            self.count -= 1
        elif backlog.behind:
            row = backlog.popleft()
            self.count = len(backlog.memory)
        else:
            return None
        if row[2] is not None:
            self.machine.taken_add_time = row[2]
        return row

    cdef int end(self, uint8_t opcode, int32_t number) except -1:
        """Apply an operation that has an xid."""
        cdef Reserving machine = self.machine
        cdef tuple row
        xid = number
        if opcode == REMOVE_TENTATIVE_XID:
            machine.last_xid = number
            row = self.take()
            if row is not None:
                machine.open[xid] = (row[0], row[1], row[2], row[3], 0) if row[4] else row
        else:
            row = machine.open.pop(xid, None)
            if opcode == UNREMOVE and row is not None:
                self.backlog.memory.appendleft(row)
                self.backlog.memory_bytes += PyBytes_GET_SIZE(row[1])
                self.count += 1
        return 0


def replay_block(Reserving machine, Waiting backlog, piece, bytes data not None, int64_t base, int64_t at, dialect):
    """Apply the whole operations of a block, up to the first one that the caller must look at."""
    cdef const uint8_t *start = <const uint8_t *> PyBytes_AS_STRING(data)
    cdef const uint8_t *p
    cdef int64_t left = PyBytes_GET_SIZE(data) - at, size
    cdef _Replay replay = _Replay()
    replay.machine, replay.backlog, replay.piece, replay.count = machine, backlog, piece, len(backlog.memory)
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

    cdef readonly Appender tail
    cdef readonly Live fuse
    cdef readonly Waiting backlog
    cdef public Reserving machine
    cdef public dict reserved_at
    cdef public int64_t plain_below

    def __init__(self, Appender tail not None, Waiting backlog not None):
        self.tail = tail
        self.fuse = tail.fuse
        self.backlog = backlog
        self.reserved_at = {}

    cdef int add_one(self, bytes data, int64_t now) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef bytes operation = PyBytes_FromStringAndSize(NULL, ADDX_HEAD + size)
        cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(operation)
        p[0] = ADDX
        put32(p + 1, <int32_t> (ADDX_BLOCK + size))
        put64(p + 5, now)
        put64(p + 13, 0)
        memcpy(p + ADDX_HEAD, PyBytes_AS_STRING(data), size)
        self.tail.add(operation, False)
        self.backlog.memory.append(new_row(self.machine.added, data, now, 0))
        self.backlog.memory_bytes += size
        self.machine.added += 1
        self.fuse.live = True
        return 0

    cdef tuple take(self, bint expired):
        self.tail.add(REMOVED, False)
        cdef tuple row = self.backlog.pop()
        if not expired and row[2] is not None:
            self.machine.taken_add_time = row[2]
        self.fuse.live = True
        return row

    cdef tuple hold(self, object now):
        """Return the xid and the row."""
        cdef Reserving machine = self.machine
        cdef int64_t number = machine.last_xid + 1
        cdef object xid = number
        if not 0 < number <= INT32_MAX or xid in machine.open:
            xid = _next_xid(machine.last_xid, machine.open)
            number = xid
        self.tail.add(xid_operation(REMOVE_TENTATIVE_XID, <int32_t> number), False)
        cdef tuple row = self.backlog.pop()
        machine.last_xid = number
        machine.open[xid] = row
        if now is not None:
            self.reserved_at[xid] = now
        if row[2] is not None:
            machine.taken_add_time = row[2]
        self.fuse.live = True
        return xid, row

    cdef int end(self, object xid) except -1:
        self.tail.add(xid_operation(CONFIRM_REMOVE, <int32_t> xid), False)
        del self.machine.open[xid]
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
        return self.hold(now)

    def confirm(self, xid):
        """End an open transaction."""
        self.end(xid)


cdef class Calls:
    """The calls of a queue that are made for each item; see the reference."""

    cdef public Mutex _guard
    cdef public Changes _contents
    cdef public object _changed
    cdef public int64_t _waiters
    cdef public int64_t _transactions
    cdef public bint _plain
    cdef public int64_t _most_items
    cdef public int64_t _most_bytes
    cdef public object _now_ms
    cdef public int64_t _max_item_bytes

    cdef inline bint is_short(self) except -1:
        cdef Changes contents = self._contents
        return (
            self._plain
            and contents.fuse.live
            and contents.tail.entry.size + XID_OP < contents.plain_below
            and bool(contents.backlog.memory)
        )

    def put(self, data, *, expiry=0):
        """Add an item at the end; see the reference."""
        cdef Changes contents
        cdef Mutex guard
        if self._plain and PyBytes_CheckExact(data) and not expiry and PyBytes_GET_SIZE(data) <= self._max_item_bytes:
            guard = self._guard
            guard.enter()
            try:
                contents = self._contents
                if (
                    contents.tail.entry.size < contents.plain_below
                    and contents.backlog.memory_bytes < self._most_bytes
                    and (self._most_items == NO_LIMIT or len(contents.backlog.memory) < self._most_items)
                ):
                    contents.add_one(<bytes> data, wall_ms() if self._now_ms is _wall_clock_ms else self._now_ms())
                    if self._waiters:
                        self._changed.notify()
                    return None
            finally:
                guard.leave()
        self._put(data, expiry)

    def get(self, timeout=0.0):
        """Take the head; see the reference."""
        cdef Mutex guard = self._guard
        guard.enter()
        try:
            if self.is_short():
                return item_of(self._contents.take(False))
        finally:
            guard.leave()
        return self._get(timeout)

    def reserve(self, timeout=0.0):
        """Take the head until confirm; see the reference."""
        cdef Mutex guard = self._guard
        cdef tuple held
        guard.enter()
        try:
            if self.is_short():
                self._transactions += 1
                held = self._contents.hold(None)
                return held[0], item_of(<tuple> held[1])
        finally:
            guard.leave()
        found = self.reserve_numbered(timeout)
        return None if found is None else (found[0], found[2])

    def confirm(self, xid):
        """The reserved item is done with; see the reference."""
        cdef Mutex guard = self._guard
        guard.enter()
        try:
            if xid in self._contents.machine.open:
                self._contents.end(xid)
                return True
            self._contents.fuse.require_open()
            return False
        finally:
            guard.leave()


for _name in ("put", "get", "reserve", "confirm"):  # their documentation and types
    _update_wrapper(getattr(Calls, _name), getattr(_reference.Calls, _name))
