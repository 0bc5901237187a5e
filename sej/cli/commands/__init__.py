"""The subcommands of the core; :mod:`sej.cli.app` maps each to its module.

The modules, in the order in which they are best read::

    writing, reading                   append; count, scan, tail, dump
    offsets, lookup                    offset, reset, follow; file, timestamp, old
    stat, top                          the state of journals, once or live
    checking, doctor                   verify; doctor
    maintenance                        repair, clean, index
    queue, queue_items                 queue: work queues; its commands that look or change items
    worker                             worker
    bench                              bench: measures this disk
"""
