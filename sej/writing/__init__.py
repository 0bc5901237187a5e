"""Appending to a journal: alone, concurrently with other processes, and exactly once.

::

    Writer ---- JournalAppender -- Lifecycle       open, failed, closed, forked; the mutex
    SharedWriter ---'  |------ WriterLock      jnl.lck, while the writer is open or for one turn at a time
      public names     |
                       |------ Buffer          encodes messages, and writes single ones without Python code
                       |------ LastSegment     the file, and how much of it is on the medium
                       |                       and its index
                       |------ Syncer          one sync for all threads that wait
                       '------ Batches         append_once; appends through the appender

The modules, in the order in which they are best read::

    writer, shared_writer              the public methods, and the options
    appender                           the work: turns, writing, syncing, finding the end again
    opening                            the last segment: lock it, finish what a crash left, cut a torn tail, append
    exactly_once                       append_once
"""
