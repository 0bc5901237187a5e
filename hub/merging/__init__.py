"""All journals of a hub as one stream, by time.

The modules, in the order in which they are best read::

    merge        Merge: the stream, and its commits
    slot         one directory: its cursor and its share of the memory
    ordering     which message is next, compiled if possible
    vector       what is committed: the offsets of all directories in one file
"""
