"""What commands share, also those of other packages.

::

    command                   exit codes, types of parameters, the terminal, and a program for each message
    text                      sizes, times and places: parsed and shown; messages as lines
    options                   options of commands that read
    readers                   the readers of a journal; journals that are sampled repeatedly
    findings                  what sej doctor checks, and what it advises
"""
