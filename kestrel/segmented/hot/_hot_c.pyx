# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=True
"""The calls of a libkestrel queue that are made for each item, compiled: the same as ``reference``, which explains it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kestrel.hot._hot_c cimport Appender, Entry, Live, Log, coarse_ns, put32, put64, wall_ms
from sej._mutex_c cimport Mutex

from collections import deque as _deque
from functools import update_wrapper as _update_wrapper
from heapq import heappop, heappush

from kestrel.clock import wall_clock_ms as _wall_clock_ms
from kestrel.segmented.codec import Item as _Item
from kestrel.segmented.hot import reference as _reference

cdef enum:
    PUT = 0x86
    READ_HEAD = 0x02
    READ_DONE = 0x91
    PUT_HEAD = 25  # command byte, size, error count, id, time of adding


cdef inline bytes put_record(int64_t number, int64_t add_time, bytes data):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, PUT_HEAD + size)
    cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(made)
    p[0] = PUT
    put32(p + 1, <int32_t> size)
    put32(p + 5, 0)
    put64(p + 9, number)
    put64(p + 17, add_time)
    memcpy(p + PUT_HEAD, PyBytes_AS_STRING(data), size)
    return made


cdef inline bytes head_record(int64_t number):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 9)
    cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(made)
    p[0] = READ_HEAD
    put64(p + 1, number)
    return made


cdef inline bytes done_record(int64_t number):
    cdef bytes made = PyBytes_FromStringAndSize(NULL, 13)
    cdef uint8_t *p = <uint8_t *> PyBytes_AS_STRING(made)
    p[0] = READ_DONE
    put32(p + 1, 8)
    put64(p + 5, number)
    return made


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

    cdef readonly Appender tail
    cdef readonly Live fuse
    cdef public int64_t tail_id
    cdef public int64_t journal_bytes

    def __init__(self, Appender tail not None, int64_t journal_bytes):
        self.tail = tail
        self.fuse = tail.fuse
        self.journal_bytes = journal_bytes


cdef class Shared:
    """What a queue and its readers share; see the reference."""

    cdef readonly Mutex guard
    cdef readonly Appender tail
    cdef public int64_t waiters
    cdef public int64_t due_ns

    def __init__(self, Mutex guard not None, Appender tail not None):
        self.guard = guard
        self.tail = tail

    cdef int count(self) except -1:
        if self.tail.active:
            self.tail.touched()
        if coarse_ns() >= self.due_ns:
            self.checkpoint()
        return 0

    def committed(self):
        """A reader has committed an item."""
        self.count()


cdef class Following:
    """What a reader has taken, and its position; see the reference."""

    cdef readonly Shared _journal
    cdef public Log _log
    cdef public bint _ageless
    cdef public int64_t _head
    cdef public int64_t _seen
    cdef public int64_t _after
    cdef public set _done
    cdef public set _skip
    cdef public dict _outstanding
    cdef public list _lowest
    cdef public object _given_back
    cdef public set _returned
    cdef public list _batch
    cdef public Py_ssize_t _at
    cdef public object _ahead
    cdef public bint _reading
    cdef public int64_t _items
    cdef public int64_t _bytes
    cdef public int64_t _gets
    cdef public int64_t _hits
    cdef public int64_t _committed

    def __init__(self, Shared journal not None, Log log not None, int64_t head, done, *, bint ageless):
        self._journal = journal
        self._log = log
        self._ageless = ageless
        self._head = self._seen = self._after = head
        self._done = set(done)
        self._skip = set(done)
        self._outstanding = {}
        self._lowest = []
        self._given_back = _deque()
        self._returned = set()
        self._batch = []

    def added(self, int64_t count, int64_t size):
        """So many items of so much data are there that this reader has to see."""
        self._items += count
        self._bytes += size

    cdef inline bint has_taken(self, object key) except -1:
        return key in self._outstanding and not (self._returned and key in self._returned)

    cdef object in_batch(self):
        cdef tuple item
        cdef object key
        cdef int64_t number
        while self._at < PyList_GET_SIZE(self._batch):
            item = <tuple> PyList_GET_ITEM(self._batch, self._at)
            self._at += 1
            key = item[0]
            number = key
            if number > self._after and number > self._head:
                if not (self._skip and key in self._skip) and key not in self._outstanding:
                    return item
                self._skip.discard(key)
            if number > self._seen:
                self._seen = number
        return None

    cdef int take(self, tuple item) except -1:
        cdef object key = item[0]
        cdef int64_t number = key
        if self._returned and self._given_back and self._given_back[0] == key:
            self._returned.discard(key)
            self._given_back.popleft()
            return 0
        if number > self._seen:  # above all that were taken
            self._lowest.append(key)
        else:
            heappush(self._lowest, key)
        self._outstanding[key] = item
        if number > self._seen:
            self._seen = number
        self._ahead = None
        return 0

    cdef int64_t over_done(self, int64_t head) except? -1:
        while head + 1 in self._done:
            head += 1
        return head

    cdef int finish(self, object key) except -1:
        cdef tuple item = <tuple> self._outstanding[key]
        cdef list lowest = self._lowest
        cdef Log log = self._log
        cdef int64_t number = key, head
        while lowest and (lowest[0] is key or lowest[0] not in self._outstanding or lowest[0] == key):
            if PyList_GET_SIZE(lowest) == 1:
                lowest.pop()
            else:
                heappop(lowest)
        head = <int64_t> lowest[0] - 1 if lowest else self._seen
        if self._done:
            head = self.over_done(head)
        if number > head:
            log.add(done_record(number))
            self._done.add(key)
        if head > self._head:
            log.add(head_record(head))
            self._head = head
        del self._outstanding[key]
        self._items -= 1
        self._bytes -= PyBytes_GET_SIZE(item[4])
        if log.grown > log.enough:
            self.checkpoint()
        self._journal.count()
        return 0

    def get(self, timeout=0.0):
        """Take the next item; see the reference."""
        cdef Mutex guard
        cdef object item
        if self._ageless:
            guard = self._journal.guard
            guard.enter()
            try:
                self._journal.tail.ready()
                if self._ahead is None and not self._reading and not self._returned:
                    item = self.in_batch()
                    if item is not None and (<tuple> item)[2] is None:
                        self.take(<tuple> item)
                        self._gets += 1
                        self._hits += 1
                        return item
                    self._ahead = item
            finally:
                guard.leave()
        return self._next(timeout, take=True)

    def commit(self, item):
        """The item, or the item of this id, is done with; see the reference."""
        cdef Mutex guard = self._journal.guard
        cdef object key = (<tuple> item)[0] if isinstance(item, _Item) else item
        guard.enter()
        try:
            self._journal.tail.ready()
            if not self.has_taken(key):
                return False
            self.finish(key)
            self._committed += 1
            return True
        finally:
            guard.leave()

    def _in_batch(self):
        """Return the next item of the batch that was read, if one is left that this reader has to see."""
        return self.in_batch()

    def _has_taken(self, number):
        """Whether an item is taken, and neither committed nor given back."""
        return self.has_taken(number)

    def _take(self, item):
        """Take an item."""
        self.take(<tuple> item)

    def _finish(self, number):
        """Commit a taken item."""
        self.finish(number)

    def _over_done(self, int64_t head):
        """A head, moved over done ids directly above it."""
        return self.over_done(head)


cdef class Puts:
    """The put of a queue; see the reference."""

    cdef public Mutex _guard
    cdef public Appending _files
    cdef public Shared _journal
    cdef public object _changed
    cdef public dict _readers
    cdef public bint _plain
    cdef public bint _bounded
    cdef public int64_t _most_items
    cdef public int64_t _most_bytes
    cdef public object _now_ms
    cdef public int64_t _max_item_bytes

    cdef bint is_full(self) except -1:
        cdef Following reader
        for one in self._readers.values():
            reader = <Following?> one
            if reader._items >= self._most_items or reader._bytes >= self._most_bytes:
                return True
        return False

    def put(self, data, *, expire_time=None):
        """Add an item for every reader; see the reference."""
        cdef Mutex guard
        cdef Appending files
        cdef FileEntry entry
        cdef Following reader
        cdef int64_t number, now
        cdef Py_ssize_t size
        if self._plain and expire_time is None and PyBytes_CheckExact(data):
            size = PyBytes_GET_SIZE(data)
            guard = self._guard
            guard.enter()
            try:
                files = self._files
                entry = <FileEntry?> files.tail.entry
                if (
                    size <= self._max_item_bytes
                    and entry.size + PUT_HEAD + size <= files.journal_bytes
                    and files.tail_id < INT64_MAX
                    and not (self._bounded and self.is_full())
                ):
                    number = files.tail_id + 1
                    now = wall_ms() if self._now_ms is _wall_clock_ms else self._now_ms()
                    files.tail.add(put_record(number, now, <bytes> data), False)
                    files.tail_id = entry.last_id = number
                    if not entry.first_id:
                        entry.first_id = number
                    for one in self._readers.values():
                        reader = <Following?> one
                        reader._items += 1
                        reader._bytes += size
                    files.fuse.live = True
                    if self._journal.waiters:
                        self._changed.notify_all()
                    return number
            finally:
                guard.leave()
        return self.put_many((data,), expire_time=expire_time)[0]


for _own, _other in (  # their documentation and types
    (Puts.put, _reference.Puts.put),
    (Following.get, _reference.Following.get),
    (Following.commit, _reference.Following.commit),
):
    _update_wrapper(_own, _other)
