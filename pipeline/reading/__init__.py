"""Journals as tables and streams: discovering them, planning which task reads what, and reading.

The modules, in the order in which they are best read::

    batch, stream                    the source sej in Spark: the driver plans, tasks read
    discovery, remote                journals and ranges of offsets in them, found on a disk or through a hub
    conditions                       which messages
    extents, planning, counting      offsets and bytes from the index, polled, packed into partitions, or counted
    task                             what a task does: slices as Arrow batches
    positions, progress, lag         a stream's offset, what retention must keep, the lag
    kestrel_items, text_entries      the small sources
"""
