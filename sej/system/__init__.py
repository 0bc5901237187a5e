"""The operating system: disk, locks, file watching, shared syncs, checksums, durable positions.

The modules, in the order in which they are best read::

    disk, file                         every call that opens, writes, syncs or renames a file
    checksum                           CRC32C
    locks                              locks that end with their process; the lock of the original SEJ
    lifecycle                          open, failed, closed, forked
    group_commit                       one sync for many threads
    durable, sealed                    the kept durable position; small files with a checksum
    watch                              waiting for a change: inotify or polling
    clock                              time as a parameter
    process                            stopping on signals, memory of the C library
    logs                               log records
"""
