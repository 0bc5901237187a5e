# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=True
"""What is done for each item, of both formats, compiled: the same as the modules ``reference``, which explain it.

A file of the system is written without a call into Python. So between two of its bytecodes an operation has happened as
a whole or not at all.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.exc cimport PyErr_CheckSignals, PyErr_NoMemory
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM
from cython cimport final
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memmove

from sej.codec._codec_c cimport check_fork
from sej.codec._layout cimport alone

import os
from collections import deque as _deque
from functools import partial

from kestrel.hot import reference as _reference
from kestrel.limits import wall_clock_ms as _wall_clock_ms
from kestrel.v2.items import ENTRY_BYTES as _ENTRY_BYTES
from kestrel.v2.items import Item as _Item
from kestrel.v2.items import check_xid as _check_xid
from kestrel.v2.items import next_xid as _next_xid
from sej.errors import ClosedError, LockLostError
from sej.fork import watch_forks

def tick_ns():
    """Return a clock that only ever runs forward, in ns; what it says is up to 4 ms old."""
    return coarse_ns()


cdef class Fuse:
    """Refuses calls after the first failure, and so on; see the reference."""

    def __init__(self, str path not None):
        self.path = path
        watch_forks(self)

    require_open = _reference.Fuse.require_open
    refuse = _reference.Fuse.refuse
    blow = _reference.Fuse.blow
    _after_fork = _reference.Fuse._after_fork


cdef class Entry:
    """A file in the queue's list; see the reference."""

    def __init__(self, int64_t size):
        self.size = size


cdef class Output:
    """Writes at the end of one open file; see the reference."""

    def __cinit__(self):
        self._descriptor = -1

    def aim(self, file):
        """Write to this file from now on; None: to none."""
        self._descriptor = -1
        self.aimed = file is not None
        self._write = None if file is None else file.writer()
        self._rest = None if file is None else file.write
        if isinstance(self._write, partial) and self._write.func is os.write:
            self._descriptor = self._write.args[0]  # the same call without Python around it

    cdef int put(self, const void *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t done
        cdef int failure = 0
        if self._descriptor < 0:
            done = self._write(PyBytes_FromStringAndSize(<const char *> data, size))
        elif alone():
            done = raw_write(self._descriptor, data, size)
            failure = errno
        else:
            with nogil:
                done = raw_write(self._descriptor, data, size)
                failure = errno
        return 0 if done == size else self.finish(data, size, done, failure)

    cdef int finish(self, const void *data, Py_ssize_t size, Py_ssize_t done, int failure) except -1:
        """Continue after a write that did not write all of it."""
        if done >= 0:
            self._rest(PyBytes_FromStringAndSize(<const char *> data + done, size - done))
            return 0
        if failure != EINTR:
            raise OSError(failure, os.strerror(failure))
        PyErr_CheckSignals()
        return self.put(data, size)

    def out(self, bytes data not None):
        """Write all of it."""
        self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef class Appender:
    """Appends to the newest file of a queue; see the reference."""

    def __init__(self, Fuse fuse not None, *, check_lock, by_policy=None):
        self.fuse = fuse
        self.output = Output()
        self.entry = Entry(0)
        self.active = by_policy is not None
        self._check_lock = check_lock
        self._by_policy = by_policy

    cdef int add(self, const void *data, Py_ssize_t size, bint midway) except -1:
        cdef Fuse fuse = self.fuse
        cdef int64_t tick
        if not fuse.live and not midway:
            fuse.refuse()
        fuse.live = False
        try:
            tick = coarse_ns()
            if not 0 <= tick - self._checked_ns < CHECK_NS:
                self._check_lock()
                self._checked_ns = tick
            self.output.put(data, size)
            self.entry.size += size
            if self.active:
                self._by_policy()
        except (OSError, LockLostError, ClosedError) as error:
            fuse.blow(error)
        return 0

    cdef int finish(self, const void *data, Py_ssize_t size, Py_ssize_t done, int failure) except -1:
        """Continue after a write that did not write all of it."""
        try:
            self.output.finish(data, size, done, failure)
        except (OSError, LockLostError, ClosedError) as error:
            self.fuse.blow(error)
        return 0

    cdef int ready(self) except -1:
        cdef Fuse fuse = self.fuse
        if not fuse.live:
            fuse.refuse()
        self.tick = coarse_ns()
        if not 0 <= self.tick - self._checked_ns < CHECK_NS:
            try:
                self._check_lock()
            except (OSError, LockLostError, ClosedError) as error:
                fuse.blow(error)
            self._checked_ns = self.tick
        return 0

    def append(self, bytes data not None, *, bint midway=False):
        """Write at the end of the file, and sync by the policy."""
        self.add(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), midway)

    def check(self):
        """Make sure that an operation may begin."""
        self.ready()


cdef class Log:
    """Appends to a log that may repeat what it has; see the reference."""

    def __init__(self, Fuse fuse not None, int64_t enough):
        self.fuse = fuse
        self.output = Output()
        self.enough = enough

    cdef int add(self, const void *record, Py_ssize_t size) except -1:
        cdef Fuse fuse = self.fuse
        if not fuse.live or not self.output.aimed:
            fuse.refuse()
        try:
            self.output.put(record, size)
        except OSError as error:
            fuse.blow(error)
        self.grown += size
        self.unsynced = True
        return 0

    cdef int finish(self, const void *record, Py_ssize_t size, Py_ssize_t done, int failure) except -1:
        """Continue after a write that did not write all of it."""
        try:
            self.output.finish(record, size, done, failure)
        except OSError as error:
            self.fuse.blow(error)
        return 0

    def append(self, bytes record not None):
        """Write one record."""
        self.add(PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record))


# --- Kestrel 2

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


# --- libkestrel

cdef enum:
    PUT = 0x86
    READ_HEAD = 0x02
    READ_DONE = 0x91
    PUT_HEAD = 25  # command byte, size, error count, id, time of adding


cdef int add_put(Appender appender, int64_t number, int64_t add_time, bytes data) except -1:
    """Append a PUT. A short one is made on the stack, which saves 130 instructions."""
    cdef uint8_t short[SHORT]
    cdef uint8_t *p = short
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef bytes made
    if PUT_HEAD + size > SHORT:
        made = PyBytes_FromStringAndSize(NULL, PUT_HEAD + size)
        p = <uint8_t *> PyBytes_AS_STRING(made)
    p[0] = PUT
    put32(p + 1, <int32_t> size)
    put32(p + 5, 0)
    put64(p + 9, number)
    put64(p + 17, add_time)
    memcpy(p + PUT_HEAD, PyBytes_AS_STRING(data), size)
    return append(appender, p, PUT_HEAD + size)


cdef inline int log_head(Log log, int64_t number) except -1:
    cdef uint8_t record[9]
    record[0] = READ_HEAD
    put64(record + 1, number)
    return append_record(log, record, 9)


cdef inline int log_done(Log log, int64_t number) except -1:
    cdef uint8_t record[13]
    record[0] = READ_DONE
    put32(record + 1, 8)
    put64(record + 5, number)
    return append_record(log, record, 13)


cdef class FileEntry(Entry):
    """A writer file in the queue's list; see the reference."""

    cdef public int64_t first_id
    cdef public int64_t last_id

    def __init__(self, int64_t size, int64_t first_id, int64_t last_id):
        self.size = size
        self.first_id = first_id
        self.last_id = last_id


cdef class Appending:
    """The end of the writer files; see the reference."""

    cdef readonly Appender appender
    cdef readonly Fuse fuse
    cdef public int64_t tail_id
    cdef public int64_t journal_bytes

    def __init__(self, Appender appender not None, int64_t journal_bytes):
        self.appender = appender
        self.fuse = appender.fuse
        self.journal_bytes = journal_bytes


@final
cdef class Shared:
    """What a queue and its readers share; see the reference."""

    cdef readonly object guard
    cdef readonly Appender appender
    cdef public int64_t waiters
    cdef public int64_t due_ns
    cdef object _touched
    cdef object _checkpoint

    def __init__(self, object guard not None, Appender appender not None, *, touched, checkpoint):
        self.guard = guard
        self.appender = appender
        self._touched = touched
        self._checkpoint = checkpoint

    cdef int count(self) except -1:
        if self.appender.active:
            self._touched()
        if self.appender.tick >= self.due_ns:
            self._checkpoint()
        return 0

    def committed(self):
        """A reader has committed an item."""
        self.count()


@final
cdef class Ids:
    """Ids in ascending order, removed from the lowest on; the reference has a heap."""

    cdef int64_t *ids
    cdef Py_ssize_t start
    cdef Py_ssize_t stop
    cdef Py_ssize_t room

    def __dealloc__(self):
        PyMem_Free(self.ids)

    cdef int add(self, int64_t number) except -1:
        cdef Py_ssize_t at, room
        cdef int64_t *ids
        if self.stop == self.room:
            if self.start > self.room // 2:
                self.stop -= self.start
                memmove(self.ids, self.ids + self.start, self.stop * sizeof(int64_t))
                self.start = 0
            else:
                room = self.room * 2 + 8
                ids = <int64_t *> PyMem_Realloc(self.ids, room * sizeof(int64_t))
                if ids == NULL:
                    raise MemoryError()
                self.ids, self.room = ids, room
        at = self.stop
        while at > self.start and self.ids[at - 1] > number:
            self.ids[at] = self.ids[at - 1]
            at -= 1
        self.ids[at] = number
        self.stop += 1
        return 0

    cdef inline void drop(self) noexcept:
        """Drop the lowest one."""
        self.start += 1
        if self.start == self.stop:
            self.start = self.stop = 0


@final
cdef class Following:
    """What a reader has taken, and its position; see the reference."""

    cdef public int64_t head
    cdef public int64_t seen
    cdef public int64_t after
    cdef public set done
    cdef public set skip
    cdef dict _outstanding
    cdef Ids _lowest
    # The item that was taken last, as long as it is not in these two. If it is committed before the next one is taken,
    # it never is, which saves 580 instructions.
    cdef tuple _last
    cdef public object given_back
    cdef public set returned
    cdef public list batch  # items that were read
    cdef public Py_ssize_t at
    cdef public object ahead
    cdef public bint reading
    cdef public int64_t items
    cdef public int64_t bytes
    cdef public int64_t gets
    cdef public int64_t hits
    cdef public int64_t committed
    cdef readonly Shared shared
    cdef readonly bint ageless
    cdef Log _log
    cdef object _checkpoint

    def __init__(self, Shared shared not None, Log log not None, int64_t head, done, *, bint ageless, checkpoint):
        self.head = self.seen = self.after = head
        self.done = set(done)
        self.skip = set(done)
        self._outstanding = {}
        self._lowest = Ids()
        self.given_back = _deque()
        self.returned = set()
        self.batch = []
        self.shared = shared
        self.ageless = ageless
        self._log = log
        self._checkpoint = checkpoint

    def added(self, int64_t count, int64_t size):
        """So many items of so much data are there that this reader has to see."""
        self.items += count
        self.bytes += size

    cdef inline int settle(self) except -1:
        """Add the last item to the other ones."""
        cdef tuple item = self._last
        if item is not None:
            self._lowest.add(item[0])
            self._outstanding[item[0]] = item
            self._last = None
        return 0

    @property
    def outstanding(self):
        """The taken items by id."""
        self.settle()
        return self._outstanding

    cdef inline tuple held(self, object key):
        """Return the item with this id if it is taken, else None."""
        cdef PyObject *item
        if self._last is not None and self._last[0] is key:
            return self._last
        self.settle()
        item = PyDict_GetItemWithError(self._outstanding, key)
        if item == NULL or (self.returned and key in self.returned):
            return None
        return <tuple> item

    cdef object next(self):
        cdef tuple item
        cdef object key
        cdef int64_t number
        while True:
            if self.at >= PyList_GET_SIZE(self.batch):
                return None
            item = <tuple> PyList_GET_ITEM(self.batch, self.at)
            self.at += 1
            key = item[0]
            number = key
            if number > self.after and number > self.head:
                # Above seen, no item is outstanding.
                if not (self.skip and key in self.skip) and (number > self.seen or key not in self.outstanding):
                    return item
                self.skip.discard(key)
            if number > self.seen:
                self.seen = number

    cdef int add(self, tuple item) except -1:
        cdef object key = item[0]
        cdef int64_t number = key
        if self.returned and self.given_back and self.given_back[0] == key:
            self.returned.discard(key)
            self.given_back.popleft()
            return 0
        if self._last is not None:
            self.settle()
        self._last = item
        if number > self.seen:
            self.seen = number
        self.ahead = None
        return 0

    cdef int64_t above_done(self, int64_t head) except? -1:
        while head + 1 in self.done:
            head += 1
        return head

    cdef int end(self, object key, tuple item) except -1:
        cdef Ids lowest = self._lowest
        cdef Log log = self._log
        cdef Shared shared
        cdef int64_t number = key, head = self.seen
        cdef Py_ssize_t at = lowest.start
        while at < lowest.stop:
            if lowest.ids[at] != number:
                if lowest.ids[at] in self._outstanding:
                    head = lowest.ids[at] - 1
                    break
                if at == lowest.start:
                    lowest.drop()
                    at = lowest.start
                    continue
            at += 1
        if self.done:
            head = self.above_done(head)
        if number > head:
            log_done(log, number)
            self.done.add(key)
        if head > self.head:
            log_head(log, head)
            self.head = head
        if item is self._last:
            self._last = None
        else:
            del self._outstanding[key]
            if lowest.start < lowest.stop and lowest.ids[lowest.start] == number:
                lowest.drop()
        self.items -= 1
        self.bytes -= PyBytes_GET_SIZE(item[4])
        if log.grown > log.enough:
            self._checkpoint()
        shared = self.shared
        if shared.appender.active or shared.appender.tick >= shared.due_ns:
            shared.count()
        return 0

    def in_batch(self):
        """Return the next item of the batch that was read, if one is left that this reader has to see."""
        return self.next()

    def has_taken(self, number):
        """Whether an item is taken, and neither committed nor given back."""
        return self.held(number) is not None

    def take(self, item):
        """Take an item."""
        self.add(<tuple> item)

    def finish(self, number):
        """Commit a taken item."""
        self.end(number, <tuple> self.outstanding[number])

    def move_head(self):
        """Move the head up; see the reference."""
        cdef int64_t number
        self._lowest = Ids()
        for number in sorted(self.outstanding):
            self._lowest.add(number)
        number = self._lowest.ids[0] - 1 if self._lowest.stop else self.seen
        self.head = self.above_done(max(number, self.head))


cdef class Gets:
    """The calls of a reader that are made for each item; see the reference."""

    cdef readonly Following _state
    cdef object _long_get

    def __init__(self, Following state not None, get):
        self._state = state
        self._long_get = get

    def get(self, timeout=0.0):
        """Take the next item; see the reference."""
        cdef Following state = self._state
        cdef object guard
        cdef object item
        if state.ageless:
            guard = state.shared.guard
            check_fork()
            guard.acquire()
            try:
                check(state.shared.appender)
                if state.ahead is None and not state.reading and not state.returned:
                    item = state.next()
                    if item is not None and (<tuple> item)[2] is None:
                        state.add(<tuple> item)
                        state.gets += 1
                        state.hits += 1
                        return item
                    state.ahead = item
            finally:
                guard.release()
        return self._long_get(timeout)

    def commit(self, item):
        """The item, or the item of this id, is done with; see the reference."""
        cdef Following state = self._state
        cdef object guard = state.shared.guard
        cdef object key = item if PyLong_CheckExact(item) else getattr(item, "id", item)
        cdef tuple held
        check_fork()
        guard.acquire()
        try:
            check(state.shared.appender)
            held = state.held(key)
            if held is None:
                return False
            state.end(key, held)
            state.committed += 1
            return True
        finally:
            guard.release()


cdef class Puts:
    """The put of a queue; see the reference."""

    cdef Appending _end
    cdef Shared _shared
    cdef list _followings
    cdef object _changed
    cdef object _long_put
    cdef bint _plain
    cdef bint _bounded
    cdef int64_t _most_items
    cdef int64_t _most_bytes
    cdef int64_t _max_item_bytes
    cdef object _now_ms

    def __init__(
        self, Appending end not None, Shared shared not None, list followings not None, changed, *, put, bint plain, bint bounded,
        int64_t most_items, int64_t most_bytes, int64_t max_item_bytes, now_ms,
    ):
        self._end = end
        self._shared = shared
        self._followings = followings
        self._changed = changed
        self._long_put = put
        self._plain = plain
        self._bounded = bounded
        self._most_items, self._most_bytes = most_items, most_bytes
        self._max_item_bytes = max_item_bytes
        self._now_ms = now_ms

    cdef bint is_full(self) except -1:
        cdef Following reader
        for one in self._followings:
            reader = <Following?> one
            if reader.items >= self._most_items or reader.bytes >= self._most_bytes:
                return True
        return False

    def put(self, data, *, expire_time=None):
        """Add an item for every reader; see the reference."""
        cdef object guard = self._shared.guard
        cdef Appending end
        cdef FileEntry entry
        cdef Following reader
        cdef int64_t number, now
        cdef Py_ssize_t size
        if self._plain and expire_time is None and PyBytes_CheckExact(data):
            size = PyBytes_GET_SIZE(data)
            check_fork()
            guard.acquire()
            try:
                end = self._end
                entry = <FileEntry?> end.appender.entry
                if (
                    size <= self._max_item_bytes
                    and entry.size + PUT_HEAD + size <= end.journal_bytes
                    and end.tail_id < INT64_MAX
                    and not (self._bounded and self.is_full())
                ):
                    number = end.tail_id + 1
                    now = wall_ms() if self._now_ms is _wall_clock_ms else self._now_ms()
                    add_put(end.appender, number, now, <bytes> data)
                    end.tail_id = entry.last_id = number
                    if not entry.first_id:
                        entry.first_id = number
                    for one in self._followings:
                        reader = <Following?> one
                        reader.items += 1
                        reader.bytes += size
                    end.fuse.live = True
                    if self._shared.waiters:
                        self._changed.notify_all()
                    return number
            finally:
                guard.release()
        return self._long_put(data, expire_time)
