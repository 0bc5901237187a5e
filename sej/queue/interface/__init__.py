"""What every work queue and every item can do, whatever the backend.

The modules, in the order in which they are best read::

    queue                              WorkQueue and Item: the methods of a queue and of its items; open_queue
    values                             values as bytes, headers, counts, options of a put, listed items, schedules
    in_memory_leases                   queues that keep the items in progress in memory
"""
