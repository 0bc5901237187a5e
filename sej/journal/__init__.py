"""A journal on disk: its directory, segments, index and gaps; reading, checking, repairing and retention.

The modules, in the order in which they are best read::

    directory, writer_lock               the files of a journal, which one it is, its gaps; the locks of its writers
    segment, cursor                      messages of one segment, and over all segments
    index                                positions, times and checksums of blocks
    view, tail                           sej.Journal; its end while it grows, and what of it is on the medium
    recovery                             sound, torn or corrupt; which messages of a damaged segment are good
    repair                               find damage and repair it
    offset_check                         where readers are, and the checksums of their offsets
    retention                            remove old segments, and which readers hold them
    tier                                 messages that were moved to another disk or an object store
"""
