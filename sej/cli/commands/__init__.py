"""The subcommands of the core; :mod:`sej.cli.app` maps each to its module.

The modules, in the order in which they are best read::

    reading                            count, scan, tail, dump; file, timestamp, old
    offsets                            offset, reset, follow
    stat                               the state of journals: stat, top, doctor
    maintenance                        append, verify, repair, clean, index
    queue, queue_items                 queue: work queues; its commands that look or change items
    worker                             worker
    bench                              bench: measures this disk
"""
