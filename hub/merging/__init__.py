"""All journals of a hub as one stream, by time.

The modules, in the order in which they are best read::

    merge        Merge: the stream, and its commits
    vector       what is committed: the offsets of all directories in one file
"""
