"""The operating system: disk, locks, file watching, shared syncs, checksums, durable positions.

The modules, in the order in which they are best read::

    disk, descriptor, status           every call that opens, writes, syncs or renames a file; what stat returns
    paths, memory, checksum            absolute paths, memory of the C library, CRC32C
    locks, lifecycle, signals          locks that end with their process; open, failed, closed, forked
    group_commit                       one sync for many threads
    durable_format, durable, sealed    the kept durable position; small files with a checksum
    watch                              waiting for a change: inotify or polling
    clock                              time as a parameter
    original                           the original SEJ next to this one: its lock
    logs                               log records
"""
