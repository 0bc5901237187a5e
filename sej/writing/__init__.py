"""Appending to a journal: alone, concurrently with other processes, and exactly once.

::

    Writer -------- Tail ----- Lifecycle       open, failed, closed, forked; the mutex
      public names    |------- Lock            jnl.lck
    IdleWriter ---- Writer     Buffer          encodes messages, and writes single ones without Python code
      for shards      |------- LastSegment     the file, and how much of it is on the medium
                      |          Blocks        its index
                      |------- Syncer          one sync for all threads that wait
                      |------- Batches         append_once; appends through the Tail

    SharedWriter -- SharedEnd                  the journal's lock, for one turn at a time
      |------------ Lifecycle, Syncer
"""

__all__: list[str] = []
