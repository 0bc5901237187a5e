"""The state of journals, for ``sej stat``, ``top``, ``doctor`` and the web page. Creates nothing, and changes nothing.

The modules, in the order in which they are best read::

    readers                            holders of locks, and the offsets of readers
    watched                            journals that are sampled repeatedly
    findings                           what doctor checks in a journal, and about the installed packages
"""
