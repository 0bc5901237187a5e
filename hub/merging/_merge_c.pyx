# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The order of a merge, compiled: the twin of ``_merge_py``, which says what everything means.

The heap is an array of C structs, so that a comparison costs no Python call; messages and sources stay Python objects.
Their timestamps and offsets are copied when a batch comes in, while its messages are still in the processor's cache.
"""

from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.tuple cimport PyTuple_GET_ITEM
from libc.stdint cimport int64_t

__all__ = ["Merger"]


cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void *op)


cdef struct Head:
    int64_t timestamp
    int64_t offset
    int client
    int journal
    int slot


cdef struct Slot:
    Py_ssize_t position
    Py_ssize_t size
    Py_ssize_t room
    int64_t *stamps  # timestamp and offset of each message of the batch, in turn
    int client
    int journal


cdef inline bint before(const Head *a, const Head *b) noexcept nogil:
    if a.timestamp != b.timestamp:
        return a.timestamp < b.timestamp
    if a.client != b.client:
        return a.client < b.client
    if a.offset != b.offset:
        return a.offset < b.offset
    return a.journal < b.journal


cdef class Merger:
    cdef Head *heap
    cdef Slot *slots
    cdef int heap_size
    cdef int slot_count
    cdef int room
    cdef list sources
    cdef list batches
    cdef readonly int emptied

    def __cinit__(self):
        self.heap = NULL
        self.slots = NULL
        self.heap_size = self.slot_count = self.room = 0
        self.sources = []
        self.batches = []
        self.emptied = -1

    def __dealloc__(self):
        cdef int slot
        for slot in range(self.slot_count):
            PyMem_Free(self.slots[slot].stamps)
        PyMem_Free(self.heap)
        PyMem_Free(self.slots)

    def add(self, source):
        cdef int room
        cdef void *grown
        if self.slot_count == self.room:
            room = self.room * 2 + 16
            grown = PyMem_Realloc(self.heap, room * sizeof(Head))
            if grown == NULL:
                raise MemoryError()
            self.heap = <Head *> grown
            grown = PyMem_Realloc(self.slots, room * sizeof(Slot))
            if grown == NULL:
                raise MemoryError()
            self.slots = <Slot *> grown
            self.room = room
        self.slots[self.slot_count] = Slot(0, 0, 0, NULL, 0, 0)
        self.sources.append(source)
        self.batches.append([])
        self.slot_count += 1
        return self.slot_count - 1

    def rank(self, int slot, int client, int journal):
        self._check(slot)
        cdef int at
        self.slots[slot].client = client
        self.slots[slot].journal = journal
        for at in range(self.heap_size):
            if self.heap[at].slot == slot:
                self.heap[at].client = client
                self.heap[at].journal = journal

    def feed(self, int slot, list batch not None):
        self._check(slot)
        cdef Head head
        cdef int at, parent
        cdef Slot *state = &self.slots[slot]
        cdef Py_ssize_t size = PyList_GET_SIZE(batch), index
        cdef void *grown
        cdef object message
        if size == 0:
            raise ValueError("a batch holds at least one message")
        if state.position < state.size:  # the heap has room for one message of each slot
            raise ValueError(f"slot {slot} still holds messages")
        if size > state.room:
            grown = PyMem_Realloc(state.stamps, 2 * size * sizeof(int64_t))
            if grown == NULL:
                raise MemoryError()
            state.stamps = <int64_t *> grown
            state.room = size
        for index in range(size):
            message = <object> PyList_GET_ITEM(batch, index)
            if not isinstance(message, tuple) or len(<tuple> message) < 2:
                raise TypeError("a batch holds messages")
            state.stamps[2 * index] = <object> PyTuple_GET_ITEM(message, 1)
            state.stamps[2 * index + 1] = <object> PyTuple_GET_ITEM(message, 0)
        state.size = size
        state.position = 0
        self.batches[slot] = batch
        head = self._head(slot)
        at = self.heap_size
        self.heap_size += 1
        while at > 0:
            parent = (at - 1) // 2
            if not before(&head, &self.heap[parent]):
                break
            self.heap[at] = self.heap[parent]
            at = parent
        self.heap[at] = head

    def head(self, int slot):
        self._check(slot)
        if self.slots[slot].position < self.slots[slot].size:
            return (<list> self.batches[slot])[self.slots[slot].position]
        return None

    def remove(self, int slot):
        self._check(slot)
        cdef int at, kept = 0
        self.batches[slot] = []
        self.slots[slot].position = self.slots[slot].size = 0
        for at in range(self.heap_size):
            if self.heap[at].slot != slot:
                self.heap[kept] = self.heap[at]
                kept += 1
        self.heap_size = kept
        for at in range(kept // 2 - 1, -1, -1):
            self._sift(at, self.heap[at])

    def take(self, Py_ssize_t limit):
        cdef list out = []
        cdef list batch
        cdef int slot
        cdef Slot *state
        cdef object source, message
        cdef tuple pair
        self.emptied = -1
        while self.heap_size and limit > 0:
            # One slot is worked on for as long as it is the first: its batch and source are looked up once.
            slot = self.heap[0].slot
            state = &self.slots[slot]
            batch = <list> self.batches[slot]
            source = self.sources[slot]
            while limit > 0 and self.heap[0].slot == slot:
                message = <object> PyList_GET_ITEM(batch, state.position)
                pair = (source, message)
                # A source and a message refer to nothing that could refer back: the collector need not look at them.
                PyObject_GC_UnTrack(<void *> pair)
                out.append(pair)
                limit -= 1
                state.position += 1
                if state.position == state.size:
                    self.heap_size -= 1
                    if self.heap_size:
                        self._sift(0, self.heap[self.heap_size])
                    self.batches[slot] = []
                    state.position = state.size = 0
                    self.emptied = slot
                    return out
                self._sift(0, self._head(slot))
        return out

    def __len__(self):
        return self.heap_size

    cdef int _check(self, int slot) except -1:
        if not 0 <= slot < self.slot_count:
            raise IndexError(f"slot {slot}: there are {self.slot_count}")
        return 0

    cdef inline Head _head(self, int slot) noexcept:
        """The slot's next message as the heap has it."""
        cdef Slot *state = &self.slots[slot]
        cdef int64_t *stamp = state.stamps + 2 * state.position
        return Head(stamp[0], stamp[1], state.client, state.journal, slot)

    cdef void _sift(self, int at, Head head) noexcept:
        """Put a head at a place and let it sink to where it belongs."""
        cdef int child
        while True:
            child = 2 * at + 1
            if child >= self.heap_size:
                break
            if child + 1 < self.heap_size and before(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not before(&self.heap[child], &head):
                break
            self.heap[at] = self.heap[child]
            at = child
        self.heap[at] = head
