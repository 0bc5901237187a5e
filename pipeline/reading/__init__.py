"""Journals as tables and streams: discovering them, planning which task reads what, and reading.

The modules, in the order in which they are best read::

    stream                           the source sej in Spark: the driver plans, tasks read; the lag
    discovery, remote                what is read: journals on a disk or a hub, ranges of offsets, conditions
    extents, planning                offsets and bytes from the index, polled, packed into partitions, or counted
    task                             what a task does: slices as Arrow batches
    progress                         a stream's offset, and what retention must keep
    rows                             the small sources
"""
