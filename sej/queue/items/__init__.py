"""What happens to the items of a queue on a journal, from put to done.

The modules, in the order in which they are best read::

    item                               an item: a message and its lease
    put                                an item is a message, and a record if it has options
    take, keyed_take                   which items come next, in the order of readiness or of keys
    flow                               limits: items at a time, items in a time, pause
    ack                                done, retry, fail, extend
    remove, dead_letters               removes items without delivering them; items that were given up, and redrive
    look                               lists items without a lock
"""
