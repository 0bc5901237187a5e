"""What happens to the items of a queue on a journal, from put to done.

The modules, in the order in which they are best read::

    core                               one open queue: its files, its locks, and calls under them
    item                               an item is a message and its lease; done, retry, fail, extend
    put                                an item is a message, and a record if it has options
    take                               which items come next, and how many; removes items without delivering them
    keyed_take                         which items come next in the order of keys
    dead_letters                       items that were given up, and redrive
    look                               lists items without a lock
"""
