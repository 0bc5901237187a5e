"""Work queues: the interface, its backends, and the queue on a journal with its log.

The modules and rooms, in the order in which they are best read. Each imports only from those below it::

    journal_queue                      the queue on a journal, composed of items, disk and log
    backends                           open_queue: which backend a path has
    work, adapter                      worker loops; the interfaces of queue.Queue and asyncio
    items                              what happens to items: put, take, ack, remove, look
    disk                               the log on disk, the lock, dead processes, messages by offset
    log                                the log's bytes and the state that they add up to, without I/O
    interface                          what every queue and every item can do

``work``, ``adapter`` and ``backends`` use the interface alone, as do the queues of other packages.
"""
