"""Appending to a journal: alone, together with other processes, exactly once.

::

    Writer -------- Tail ----- Lifecycle       open, failed, closed, forked; the mutex
      public names    |------- Lock            jnl.lck
    IdleWriter ---- Writer     Buffer          encodes, and writes single messages by itself
      for shards      |------- LastSegment     the file, and what of it is on the medium
                      |          Blocks        its index
                      |------- Syncer          one sync for all threads that wait
                      |------- Batches         append_once; appends through the Tail

    SharedWriter -- SharedEnd                  one turn at a time, with the lock of other processes
      |------------ Lifecycle, Syncer
"""

__all__: list[str] = []
