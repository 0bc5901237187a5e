"""What every work queue and every item can do, whatever the backend.

The modules, in the order in which they are best read::

    queue, item                        WorkQueue and Item: the methods of a queue and of an item that was taken
    values                             counts, options of a put, and items as they are listed
    serializers, headers               values as bytes; names with texts, and the trace context in them
    held                               the base of items; queues that keep the items in progress in memory
"""
