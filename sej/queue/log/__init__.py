"""The state log of a queue on a journal: its bytes, the state that its records add up to, its file and its locks.

The modules, in the order in which they are best read::

    format                             the layout and the kinds of records, as bytes and back; no I/O, as below
    state                              who holds what, what waits, what is done; a state as records, without its history
    ready_queue                        when a lease or a delay ends, the order of keys, the times of schedules
    file                               reads the log, appends to it, writes it without its history; its lock
    reader                             messages by offset; compares the log with the journal; finds parked items
"""
