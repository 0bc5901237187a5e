"""What commands share, also those of other packages.

::

    exits                     exit codes, and errors of the system as lines
    units, parameters         sizes, times and places: parsed, shown, and as types of parameters
    options, output           options of commands that read; messages as lines
    terminal                  keys, bars of progress, and a reader that closes our output
    readers, watched          the readers of a journal; journals that are sampled repeatedly
    findings                  what sej doctor checks, and what it advises
"""
