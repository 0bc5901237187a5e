# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, nonecheck=True
"""The calls of a libkestrel queue that are made for each item, compiled: the same as ``reference``, which explains it."""

from cython cimport final

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memmove

from kestrel.hot._hot_c cimport Appender, Entry, Fuse, Log, append, append_record, check, put32, put64, wall_ms
from sej.codec._codec_c cimport check_fork

from collections import deque as _deque
from functools import update_wrapper as _update_wrapper

from kestrel.limits import wall_clock_ms as _wall_clock_ms
from kestrel.segmented.codec import Item as _Item
from kestrel.segmented.hot import reference as _reference

cdef enum:
    PUT = 0x86
    READ_HEAD = 0x02
    READ_DONE = 0x91
    PUT_HEAD = 25  # command byte, size, error count, id, time of adding
    SHORT = 1024


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
        cdef object key = (<tuple> item)[0] if not PyLong_CheckExact(item) and isinstance(item, _Item) else item
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


for _own, _other in (  # their documentation and types
    (Puts.put, _reference.Puts.put),
    (Gets.get, _reference.Gets.get),
    (Gets.commit, _reference.Gets.commit),
):
    _update_wrapper(_own, _other)
