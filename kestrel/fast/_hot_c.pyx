# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=True
"""What is done for each item and each record, of both formats, compiled: as ``reference``, which explains it.

A file of the system is written without a call into Python. So between two of its bytecodes an operation has happened as
a whole or not at all. Each call for one item has a short way, which may be used if nothing is left to do but the write and
its effect. Otherwise it calls the method of the queue or reader, as the reference always does.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM
from libc.errno cimport EINTR, errno
from libc.stdint cimport INT32_MAX, INT64_MAX, int8_t, int32_t, int64_t, uint8_t
from libc.string cimport memcpy
from posix.unistd cimport write

from sej.codec._codec_c cimport check_fork
from sej.codec._layout cimport alone, coarse_ns, now_ns

import os
from collections import OrderedDict as _OrderedDict
from collections import deque as _deque
from functools import partial
from threading import Condition as _Condition
from threading import RLock as _RLock

from kestrel.fast import reference as _reference
from kestrel.fast.reference import FAILURES
from kestrel.files import wall_clock_ms as _wall_clock_ms
from kestrel.v2.items import ENTRY_BYTES as _ENTRY_BYTES
from kestrel.v2.items import Item as _Item
from sej.fork import watch_forks

cdef extern from *:
    """
    #include <endian.h>
    #include <stdint.h>
    #include <string.h>
    static inline int32_t kestrel_get32(const uint8_t *p) { uint32_t x; memcpy(&x, p, 4); return (int32_t)le32toh(x); }
    static inline int64_t kestrel_get64(const uint8_t *p) { uint64_t x; memcpy(&x, p, 8); return (int64_t)le64toh(x); }
    static inline void kestrel_put32(uint8_t *p, int32_t x) { uint32_t y = htole32((uint32_t)x); memcpy(p, &y, 4); }
    static inline void kestrel_put64(uint8_t *p, int64_t x) { uint64_t y = htole64((uint64_t)x); memcpy(p, &y, 8); }
    /* A tuple that the garbage collector does not see: for numbers and bytes only. */
    static inline PyObject *kestrel_tuple(PyTypeObject *type, Py_ssize_t size) {
        PyTupleObject *made = PyObject_GC_NewVar(PyTupleObject, type, size);
        for (Py_ssize_t i = 0; made != NULL && i < size; i++) made->ob_item[i] = NULL;
    #if PY_VERSION_HEX >= 0x030E0000
        if (made != NULL) made->ob_hash = -1;  /* tuples remember their hash: not computed yet */
    #endif
        return (PyObject *)made;
    }
    """
    int32_t get32 "kestrel_get32"(const uint8_t *p) nogil
    int64_t get64 "kestrel_get64"(const uint8_t *p) nogil
    void put32 "kestrel_put32"(uint8_t *p, int32_t x) nogil
    void put64 "kestrel_put64"(uint8_t *p, int64_t x) nogil
    object new_tuple "kestrel_tuple"(PyTypeObject *type, Py_ssize_t size)

    PyTypeObject PyTuple_Type


cdef enum:
    CHECK_NS = 100_000_000
    REMOVE = 1  # opcodes and sizes of Kestrel 2
    ADDX = 2
    CONFIRM_REMOVE = 6
    REMOVE_TENTATIVE_XID = 9
    ADDX_BLOCK = 16
    ADDX_HEAD = 21
    XID_OP = 5
    PUT = 0x86  # of libkestrel
    READ_HEAD = 0x02
    PUT_HEAD = 25
    HEAD_RECORD = 9
    SHORT = 1024
    SLOTS = 8


def tick_ns():
    """Return a clock that only ever runs forward, in ns; what it says is up to 4 ms old."""
    return coarse_ns()


cdef class Fuse:
    """Refuses calls after the first failure, and so on; see the reference."""

    cdef public bint live
    cdef public bint shut
    cdef readonly str path
    cdef public object failure
    cdef object __weakref__

    def __init__(self, str path not None):
        self.path = path
        watch_forks(self)

    require_open = _reference.Fuse.require_open
    refuse = _reference.Fuse.refuse
    fail = _reference.Fuse.fail
    _after_fork = _reference.Fuse._after_fork


cdef class Signal:
    """The mutex of a queue, and the calls that wait for an item; see the reference."""

    cdef readonly object guard
    cdef readonly object changed
    cdef public int64_t waiters
    cdef public int64_t evictions
    cdef public object limit_s
    cdef object enter  # these methods of the mutex, found once
    cdef object leave

    def __init__(self):
        self.guard = _RLock()
        self.enter, self.leave = self.guard.acquire, self.guard.release
        self.changed = _Condition(self.guard)

    turns = _reference.Signal.turns
    notify = _reference.Signal.notify
    evict = _reference.Signal.evict


cdef class Entry:
    """A file in the queue's list; see the reference."""

    cdef public str path
    cdef public object stamp
    cdef public int64_t size
    cdef public int64_t first_id
    cdef public int64_t last_id

    def __init__(self, str path not None, stamp, int64_t size=0, int64_t first_id=0, int64_t last_id=0):
        self.path, self.stamp = path, stamp
        self.size, self.first_id, self.last_id = size, first_id, last_id


cdef class Output:
    """Writes at the end of one open file; see the reference."""

    cdef readonly Fuse fuse
    cdef readonly object file
    cdef public int64_t grown
    cdef public bint unsynced
    cdef public int64_t enough
    cdef object _write
    cdef int _descriptor

    def __init__(self, Fuse fuse not None):
        self.fuse = fuse
        self.aim(None)

    sync = _reference.Output.sync
    close = _reference.Output.close

    def aim(self, file):
        """Write to this file from now on; None: to none."""
        self._descriptor = -1
        self.file = file
        self._write = None if file is None else file.writer()
        self.grown = 0
        self.unsynced = False
        if isinstance(self._write, partial) and self._write.func is os.write:
            self._descriptor = self._write.args[0]  # the same call without Python around it

    cdef int put(self, const void *data, Py_ssize_t size) except -1:
        if self.file is None:
            self.fuse.refuse()
        try:
            self.write(data, size)
        except FAILURES as error:
            self.fuse.fail(error)
        self.grown += size
        self.unsynced = True
        return 0

    cdef int write(self, const void *data, Py_ssize_t size) except -1:
        cdef Py_ssize_t done
        cdef int failure = 0
        if self._descriptor < 0:
            done = self._write(PyBytes_FromStringAndSize(<const char *> data, size))
        elif alone():
            done = write(self._descriptor, data, size)
            failure = errno
        else:
            with nogil:
                done = write(self._descriptor, data, size)
                failure = errno
        return 0 if done == size else self.finish(data, size, done, failure)

    cdef int finish(self, const void *data, Py_ssize_t size, Py_ssize_t done, int failure) except -1:
        """Continue after a write that did not write all of it."""
        if done >= 0:
            self.file.write(PyBytes_FromStringAndSize(<const char *> data + done, size - done))
            return 0
        if failure != EINTR:
            raise OSError(failure, os.strerror(failure))
        PyErr_CheckSignals()
        return self.write(data, size)

    def out(self, bytes data not None):
        """Write all of it."""
        self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


cdef class Appender:
    """Appends to the newest file of a queue; see the reference."""

    cdef readonly Fuse fuse
    cdef readonly Signal signal
    cdef readonly Output output
    cdef public Entry entry
    cdef readonly bint active
    cdef public int64_t _checked_ns

    def __init__(self, Fuse fuse not None, *, bint active):
        self.fuse = fuse
        self.signal = Signal()
        self.output = Output(fuse)
        self.entry = Entry("", None)
        self.active = active

    cdef inline bint ready(self) except -1:
        """Whether a write may begin now, the lock was looked after lately, and no policy syncs."""
        return self.fuse.live and not self.active and 0 <= coarse_ns() - self._checked_ns < CHECK_NS

    cdef int look(self) except -1:
        """Look after the lock, once in a while."""
        cdef int64_t tick = coarse_ns()
        if not 0 <= tick - self._checked_ns < CHECK_NS:
            try:
                self.check_lock()
            except FAILURES as error:
                self.fuse.fail(error)
            self._checked_ns = tick
        return 0

    cdef int write(self, const void *data, Py_ssize_t size) except -1:
        """Write at the end of the file, if :meth:`ready`."""
        self.fuse.live = False
        self.output.put(data, size)
        self.entry.size += size
        return 0

    def append(self, bytes data not None, *, bint midway=False):
        """Write at the end of the file, and sync by the policy."""
        if not self.fuse.live and not midway:
            self.fuse.refuse()
        self.fuse.live = False
        self.look()
        self.output.out(data)
        self.entry.size += PyBytes_GET_SIZE(data)
        if self.active:
            self.by_policy()

    def check(self):
        """Make sure that an operation may begin."""
        if not self.fuse.live:
            self.fuse.refuse()
        self.look()


cdef inline void set_item(object made, Py_ssize_t at, object value):
    Py_INCREF(value)
    PyTuple_SET_ITEM(made, at, value)


cdef struct Slot:
    int8_t width  # 0: nothing, 1, 4 or 8: that many bytes, -1: the position, -2: the data
    uint8_t at


cdef struct Shape:
    int8_t head  # 0: the first byte is none of the table
    int8_t size_at  # 0: no data
    int32_t covered
    Slot slots[SLOTS]


cdef class Table:
    """The records of a format whose first byte tells their layout; see the reference."""

    cdef object _kind
    cdef Py_ssize_t _count
    cdef int64_t _most
    cdef Shape _shapes[256]

    def __init__(self, kind, str byte not None, int64_t most, layouts):
        cdef Shape *shape
        cdef Py_ssize_t slot
        self._kind, self._count, self._most = kind, len(kind._fields), most
        assert self._count <= SLOTS
        for number, names, head, covered in layouts:
            shape = &self._shapes[<uint8_t> number]
            shape.head, shape.covered = head.size, covered
            places, at = {"position": (-1, 0), byte: (1, 0)}, 1
            for name, code in zip(names, head.format[2:]):
                width = 4 if code == "i" else 8
                places[name] = width, at
                if name == "size":
                    shape.size_at = at
                    places["data"] = -2, 0
                at += width
            for slot, name in enumerate(kind._fields):
                shape.slots[slot].width, shape.slots[slot].at = places.get(name, (0, 0))

    def decode(self, bytes data not None, int64_t base=0, Py_ssize_t at=0):
        """All whole records from ``at`` on, and where in data the next one begins."""
        cdef const uint8_t *start = <const uint8_t *> PyBytes_AS_STRING(data)
        cdef const uint8_t *p
        cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
        cdef int64_t size
        cdef Shape *shape
        cdef list found = []
        while at < end:
            p = start + at
            shape = &self._shapes[p[0]]
            if not shape.head or shape.head > end - at:
                break
            size = 0
            if shape.size_at:
                size = get32(p + shape.size_at) - <int64_t> shape.covered
                if not 0 <= size <= self._most or shape.head + size > end - at:
                    break
            found.append(self.record(shape, p, base + at, size))
            at += shape.head + size
        return found, at

    cdef object record(self, Shape *shape, const uint8_t *p, int64_t position, Py_ssize_t size):
        """One record; never tracked by the collector: it refers to numbers and bytes only."""
        cdef object made = new_tuple(<PyTypeObject *> self._kind, self._count)
        cdef object value
        cdef Py_ssize_t slot
        cdef int8_t width
        cdef const uint8_t *field
        for slot in range(self._count):
            width, field = shape.slots[slot].width, p + shape.slots[slot].at
            if width == 8:
                value = get64(field)
            elif width == 4:
                value = get32(field)
            elif width == 1:
                value = field[0]
            elif width == -1:
                value = position
            elif width == -2:
                value = PyBytes_FromStringAndSize(<const char *> p + shape.head, size)
            else:
                value = None
            set_item(made, slot, value)
        return made


cdef inline int add(Appender appender, const uint8_t *head, Py_ssize_t head_size, bytes data) except -1:
    """Append a record. A short one is made on the stack, which saves 130 instructions."""
    cdef uint8_t short[SHORT]
    cdef uint8_t *p = short
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef bytes made
    if head_size + size > SHORT:
        made = PyBytes_FromStringAndSize(NULL, head_size + size)
        p = <uint8_t *> PyBytes_AS_STRING(made)
    memcpy(p, head, head_size)
    memcpy(p + head_size, PyBytes_AS_STRING(data), size)
    return appender.write(p, head_size + size)


cdef class Putting:
    """What a put needs in both formats; see the reference."""

    cdef public Signal _signal
    cdef readonly Appender _appender
    cdef public object _limits
    cdef public object _now_ms
    cdef bint _plain
    cdef int64_t _most_items
    cdef int64_t _most_bytes
    cdef int64_t _max_item_bytes

    def __init__(self, Appender appender not None, limits, *, bint plain, now_ms):
        self._appender, self._signal, self._limits = appender, appender.signal, limits
        self._plain, self._now_ms = plain, now_ms
        self._most_items, self._most_bytes = limits.most_items, limits.most_bytes
        self._max_item_bytes = limits.max_item_bytes

    cdef inline int64_t clock(self) except? -1:
        return now_ns() // 1_000_000 if self._now_ms is _wall_clock_ms else self._now_ms()


# --- Kestrel 2

cdef int64_t NO_LIMIT = 1 << 62
cdef int64_t ENTRY_BYTES = _ENTRY_BYTES
cdef PyTypeObject *ITEM = <PyTypeObject *> _Item
cdef uint8_t REMOVED = REMOVE


cdef inline object item_of(tuple row):
    """The item that a row is."""
    cdef object item = new_tuple(ITEM, 3)
    cdef Py_ssize_t at
    for at in range(3):
        set_item(item, at, <object> PyTuple_GET_ITEM(row, at + 1))
    return item


cdef inline tuple new_row(int64_t number, bytes data, object added, int64_t expiry):
    """A row, which the garbage collector does not see."""
    cdef tuple row = <tuple> new_tuple(&PyTuple_Type, 5)
    set_item(row, 0, number)
    set_item(row, 1, data)
    set_item(row, 2, added)
    set_item(row, 3, expiry)
    set_item(row, 4, 0)
    return row


cdef inline int add_xid(Appender appender, uint8_t opcode, int32_t xid) except -1:
    cdef uint8_t operation[XID_OP]
    operation[0] = opcode
    put32(operation + 1, xid)
    return appender.write(operation, XID_OP)


cdef class Rows:
    """What a queue holds in memory; see the reference."""

    cdef readonly object memory
    cdef public int64_t memory_bytes
    cdef public int64_t behind
    cdef public int64_t behind_bytes
    cdef public int64_t enough
    cdef public bint expiring
    cdef public dict open
    cdef public int64_t last_xid
    cdef public int64_t added
    cdef public int64_t transactions
    cdef public int64_t taken_add_time
    cdef public int64_t plain_below
    cdef public int64_t empty_below
    cdef public int64_t behind_below
    cdef object _push  # these methods of memory, found once: saves 100 instructions for each call
    cdef object _pull

    def __init__(self):
        self.memory = _deque()
        self._push, self._pull = self.memory.append, self.memory.popleft
        self.open = {}

    def replay(self, list operations not None, Py_ssize_t at, int64_t limit_bytes):
        """Apply adds and removes from ``at`` on, as long as they need no file; return where that ends."""
        cdef tuple operation
        cdef int64_t opcode
        while at < PyList_GET_SIZE(operations):
            operation = <tuple> PyList_GET_ITEM(operations, at)
            opcode = operation[1]
            if opcode == ADDX and not self.behind and self.memory_bytes + ENTRY_BYTES * len(self.memory) < limit_bytes:
                self.expiring = self.expiring or operation[4] != 0
                self._push(new_row(self.added, operation[5], operation[3], operation[4]))
                self.memory_bytes += PyBytes_GET_SIZE(operation[5])
                self.added += 1
            elif opcode == REMOVE and len(self.memory) > (self.enough if self.behind else 0):
                self.pop()
            else:
                break
            at += 1
        return at

    cdef tuple pop(self):
        """Take the head."""
        cdef tuple row = self._pull()
        self.memory_bytes -= PyBytes_GET_SIZE(row[1])
        if row[2] is not None:
            self.taken_add_time = row[2]
        return row


cdef class Calls(Putting):
    """The calls of a queue that are made for each item; see the reference."""

    cdef readonly Rows _rows
    cdef int64_t _now  # of the last item that was added the short way
    cdef object _now_object

    def __init__(self, Rows rows not None, Appender appender not None, limits, *, bint plain, now_ms):
        Putting.__init__(self, appender, limits, plain=plain, now_ms=now_ms)
        self._rows = rows

    cdef inline bint may_add(self) except -1:
        cdef Rows rows = self._rows
        cdef int64_t below = rows.plain_below
        if rows.behind:
            below = rows.behind_below
        elif below != rows.empty_below and not rows.memory:
            below = rows.empty_below
        return (
            self._appender.ready()
            and self._appender.entry.size < below
            and rows.memory_bytes + rows.behind_bytes < self._most_bytes
            and (self._most_items == NO_LIMIT or len(rows.memory) + rows.behind < self._most_items)
        )

    cdef inline bint may_take(self) except -1:
        cdef Rows rows = self._rows
        cdef Py_ssize_t count = len(rows.memory)
        cdef int64_t below = rows.plain_below if count > 1 else rows.empty_below
        if rows.behind:
            below = rows.behind_below if count > rows.enough else 0
        return count > 0 and self._appender.entry.size + XID_OP < below and self._appender.ready()

    def put(self, data, *, expiry=0):
        """Add an item at the end; see the reference."""
        cdef Signal signal = self._signal
        cdef Rows rows = self._rows
        cdef uint8_t head[ADDX_HEAD]
        cdef int64_t now
        if self._plain and PyBytes_CheckExact(data) and not expiry and PyBytes_GET_SIZE(data) <= self._max_item_bytes:
            check_fork()
            signal.enter()
            try:
                if self.may_add():
                    now = self.clock()
                    head[0] = ADDX
                    put32(head + 1, <int32_t> (ADDX_BLOCK + PyBytes_GET_SIZE(data)))
                    put64(head + 5, now)
                    put64(head + 13, 0)
                    add(self._appender, head, ADDX_HEAD, <bytes> data)
                    if rows.behind:
                        rows.behind += 1
                        rows.behind_bytes += PyBytes_GET_SIZE(data)
                    else:
                        if now != self._now or self._now_object is None:
                            self._now = now
                            self._now_object = now  # shared by the items of a millisecond: saves 32 bytes for each
                        rows._push(new_row(rows.added, data, self._now_object, 0))
                        rows.memory_bytes += PyBytes_GET_SIZE(data)
                    rows.added += 1
                    self._appender.fuse.live = True
                    if signal.waiters:
                        signal.changed.notify()
                    return None
            finally:
                signal.leave()
        self._put(data, expiry=expiry)

    def get(self, timeout=0.0):
        """Take the head; see the reference."""
        cdef Signal signal = self._signal
        cdef tuple row
        check_fork()
        signal.enter()
        try:
            if self._plain and self.may_take():
                self._appender.write(&REMOVED, 1)
                row = self._rows.pop()
                self._appender.fuse.live = True
                return item_of(row)
        finally:
            signal.leave()
        return self._get(timeout)

    def reserve(self, timeout=0.0):
        """Take the head until confirm; see the reference."""
        cdef Signal signal = self._signal
        cdef Rows rows = self._rows
        cdef int64_t number
        cdef object xid
        cdef tuple row
        check_fork()
        signal.enter()
        try:
            if self._plain and self.may_take():
                number = rows.last_xid + 1
                xid = number
                if 0 < number <= INT32_MAX and xid not in rows.open:
                    add_xid(self._appender, REMOVE_TENTATIVE_XID, <int32_t> number)
                    row = rows.pop()
                    rows.last_xid = number
                    rows.open[xid] = row
                    rows.transactions += 1
                    self._appender.fuse.live = True
                    return xid, item_of(row)
        finally:
            signal.leave()
        return self._reserve(timeout)

    def confirm(self, xid):
        """The reserved item is done with. False if no such transaction is open."""
        cdef Signal signal = self._signal
        cdef Rows rows = self._rows
        check_fork()
        signal.enter()
        try:
            if self._plain and xid in rows.open and self._appender.ready():
                add_xid(self._appender, CONFIRM_REMOVE, <int32_t> xid)
                del rows.open[xid]
                self._appender.fuse.live = True
                return True
        finally:
            signal.leave()
        return self._confirm(xid)


# --- libkestrel


cdef class WriterEnd:
    """The end of the writer files; see the reference."""

    cdef readonly Appender appender
    cdef public int64_t tail_id
    cdef public int64_t journal_bytes
    cdef public int64_t due_ns
    cdef readonly dict readers

    def __init__(self, Appender appender not None, int64_t journal_bytes):
        self.appender = appender
        self.readers = {}
        self.journal_bytes = journal_bytes


cdef class Following:
    """What a reader has taken, and its position; see the reference."""

    cdef public Signal _signal
    cdef readonly WriterEnd _end
    cdef Output _log
    cdef bint _ageless
    cdef public int64_t head
    cdef public int64_t seen
    cdef public int64_t after
    cdef public set done
    cdef public set skip
    cdef public dict outstanding
    cdef public list lowest
    cdef public object returned
    cdef public list batch
    cdef public Py_ssize_t at
    cdef public object ahead
    cdef public bint reading
    cdef public int64_t items
    cdef public int64_t bytes
    cdef public int64_t gets
    cdef public int64_t hits
    cdef public int64_t committed

    def __init__(self, WriterEnd end not None, Output log not None, int64_t head, done, *, bint ageless):
        self._end, self._signal, self._log, self._ageless = end, end.appender.signal, log, ageless
        self.head = self.seen = self.after = head
        self.done, self.skip = set(done), set(done)
        self.outstanding, self.lowest, self.batch = {}, [], []
        self.returned = _OrderedDict()

    def get(self, timeout=0.0):
        """Take the next item; see the reference. The short way: it is in the batch, and above all that were taken."""
        cdef Signal signal = self._signal
        cdef tuple item
        cdef object key
        cdef int64_t number
        check_fork()
        signal.enter()
        try:
            if (
                self._ageless and self.at < PyList_GET_SIZE(self.batch) and self.ahead is None and not self.reading
                and not self.skip and not self.returned and self._end.appender.fuse.live
                and 0 <= coarse_ns() - self._end.appender._checked_ns < CHECK_NS
            ):
                item = <tuple> PyList_GET_ITEM(self.batch, self.at)
                key = item[0]
                number = key
                if number > self.seen and number > self.after and item[2] is None:
                    self.at += 1
                    self.seen = number
                    self.lowest.append(key)  # the highest one, so this is still a heap
                    self.outstanding[key] = item
                    self.gets += 1
                    self.hits += 1
                    return item
        finally:
            signal.leave()
        return self._get(timeout)

    def commit(self, item):
        """The item, or the item of this id, is done with. The short way: it is the only one that is taken."""
        cdef Signal signal = self._signal
        cdef object key = item if PyLong_CheckExact(item) else getattr(item, "id", item)
        cdef uint8_t record[HEAD_RECORD]
        cdef Output log = self._log
        cdef tuple held
        check_fork()
        signal.enter()
        try:
            if (
                PyList_GET_SIZE(self.lowest) == 1 and len(self.outstanding) == 1 and key in self.outstanding
                and not self.returned and not self.done and self.seen > self.head and log.grown <= log.enough
                and self._end.appender.ready() and coarse_ns() < self._end.due_ns
            ):
                record[0] = READ_HEAD
                put64(record + 1, self.seen)
                log.put(record, HEAD_RECORD)
                held = <tuple> self.outstanding.pop(key)
                self.head = self.seen
                self.lowest.pop()
                self.items -= 1
                self.bytes -= PyBytes_GET_SIZE(held[4])
                self.committed += 1
                return True
        finally:
            signal.leave()
        return self._commit(item)


cdef class Puts(Putting):
    """The put of a queue; see the reference."""

    cdef readonly WriterEnd _end
    cdef bint _bounded

    def __init__(self, WriterEnd end not None, Appender appender not None, limits, *, bint plain, now_ms):
        Putting.__init__(self, appender, limits, plain=plain, now_ms=now_ms)
        self._end, self._bounded = end, limits.bounded

    cdef bint is_full(self) except -1:
        """Whether a reader is at a limit, expired items included."""
        cdef Following reader
        for one in self._end.readers.values():
            reader = <Following?> one
            if reader.items >= self._most_items or reader.bytes >= self._most_bytes:
                return True
        return False

    def put(self, data, *, expire_time=None):
        """Add an item for every reader; see the reference."""
        cdef Signal signal = self._signal
        cdef WriterEnd end = self._end
        cdef Entry entry
        cdef Following reader
        cdef uint8_t head[PUT_HEAD]
        cdef PyObject *one
        cdef Py_ssize_t at = 0
        cdef int64_t number
        cdef Py_ssize_t size
        if self._plain and expire_time is None and PyBytes_CheckExact(data):
            size = PyBytes_GET_SIZE(data)
            check_fork()
            signal.enter()
            try:
                entry = end.appender.entry
                if (
                    size <= self._max_item_bytes
                    and entry.size + PUT_HEAD + size <= end.journal_bytes
                    and end.tail_id < INT64_MAX
                    and end.appender.ready()
                    and not (self._bounded and self.is_full())
                ):
                    number = end.tail_id + 1
                    head[0] = PUT
                    put32(head + 1, <int32_t> size)
                    put32(head + 5, 0)
                    put64(head + 9, number)
                    put64(head + 17, self.clock())
                    add(end.appender, head, PUT_HEAD, <bytes> data)
                    end.tail_id = entry.last_id = number
                    if not entry.first_id:
                        entry.first_id = number
                    while PyDict_Next(end.readers, &at, NULL, &one):
                        reader = <Following?> <object> one
                        reader.items += 1
                        reader.bytes += size
                    end.appender.fuse.live = True
                    if signal.waiters:
                        signal.changed.notify_all()
                    return number
            finally:
                signal.leave()
        return self._put(data, expire_time=expire_time)
