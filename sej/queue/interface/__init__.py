"""What every work queue and every item can do, whatever the backend.

The modules, in the order in which they are best read::

    queue, item                        WorkQueue and Item: the methods of a queue and of an item that was taken
    values                             values as bytes, headers, counts, options of a put, items as they are listed
    held                               the base of items; queues that keep the items in progress in memory
"""
