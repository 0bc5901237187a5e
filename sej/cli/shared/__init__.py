"""What the commands of all packages share.

The modules, in the order in which they are best read::

    options, parameters, units         options and their types; texts as sizes, offsets and times, and back
    places                             the queue that a command names
    output, decoding                   messages as lines, and their values as JSON
    exits, system_errors, logs         exit codes; errors of the system as lines; log records on standard error
    progress, keys                     progress bars; the keys of a live table
    pipes, programs, supervising       a closed pipe; programs that a command starts; processes that it supervises
"""
