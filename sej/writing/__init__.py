"""Appending to a journal: alone, concurrently with other processes, and exactly once.

::

    Writer -------- Tail ----- Lifecycle       open, failed, closed, forked; the mutex
      public names    |------- Lock            jnl.lck
                      |------- Buffer          encodes messages, and writes single ones without Python code
                      |------- LastSegment     the file, and how much of it is on the medium
                      |          Blocks        its index
                      |------- Syncer          one sync for all threads that wait
                      |------- Batches         append_once; appends through the Tail

    SharedWriter -- SharedEnd                  the journal's lock, for one turn at a time
      |------------ Lifecycle, Syncer

The modules, in the order in which they are best read::

    writer, tail                       the exclusive writer: its methods, and the work
    last_segment, blocks, end          the file it appends to, its index, and where it ends
    taking, opening                    opens any other one: take the lock, cut a torn tail
    shared_writer, shared_end          many processes, one turn at a time
    staging, exactly_once              rows in tmp/, and append_once
    guarded                            the original SEJ as a second writer: notice it
"""
