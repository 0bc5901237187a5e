"""Journals as tables and streams: discovering them, planning which task reads what, and reading.

The modules, in the order in which they are best read::

    batch, stream                        the source sej in Spark: the driver plans, tasks read
    places, discovery, remote            journals and ranges of offsets in them, found on a disk or through a hub
    bounds, conditions, filters          which messages: options, conditions, Spark's filters
    extents, planning, counting          offsets and bytes from the index, packed into partitions, or counted
    task, arrow, memory                  what a task does: slices as Arrow batches
    positions, limits, following         a stream's offset, the limit of a micro-batch, polling
    progress, lag, refused               what retention must keep, the lag, a stream that cannot start
    kestrel_items, text_entries, rows    the small sources
"""
