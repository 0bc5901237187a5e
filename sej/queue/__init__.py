"""Work queues: the interface, its backends, and the queue on a journal with its log.

The modules and subpackages, in the order in which they are best read. Each imports only from those below it::

    journal_queue                      the queue on a journal, composed of the parts below, and its items
    keyed_take, take                   which items come next, and how many; keys in their order, kinds in turn
    put                                an item is a message, and a record if it has options; makes those of schedules
    core                               one open queue: its files, its locks, calls under them, and waiting
    listing                            lists items without a lock
    dead_letters                       items that were given up, and redrive
    log                                the state log: its bytes, its state, its file and locks
    work, adapter                      worker loops; the interfaces of queue.Queue and asyncio
    interface                          what every queue and every item can do; open_queue

A lease ends when its worker gives the item back or ends it (``journal_queue``), when its holder has died
(``core.requeue_of_dead_holders``), or when its time is over (``log.ready_queue``), which the next PICK records.

``work`` and ``adapter`` use the interface alone, as do the queues of other packages.
"""
