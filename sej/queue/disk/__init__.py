"""What a queue on a journal keeps on the disk, under its lock.

The modules, in the order in which they are best read::

    log                                reads the state log, appends to it, writes it again without its history
    lock                               the queue's lock; which processes are alive
    reader                             messages by offset; compares the log with the journal after a power loss
    parked                             what a queue with an order of keys reads in the journal
"""
