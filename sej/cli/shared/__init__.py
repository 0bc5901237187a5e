"""What the commands of all packages share.

The modules, in the order in which they are best read::

    options, parameters, units         options and their types; texts as sizes, offsets and times, and back
    places                             the queue that a command names
    output                             messages as lines, and their values as JSON
    exits                              exit codes; errors of the system as lines
    terminal                           keys, progress bars, and a closed pipe
"""
