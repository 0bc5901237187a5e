"""Kestrel's two journals: read what the originals left, run queues that they could read.

``v2`` and ``segmented`` have a format each and do not import each other. They share the modules next to them. In the
order in which they are best read::

    v2, segmented                        Kestrel 2; libkestrel, which Kestrel 3 uses
    backend, commands                    the queues as work queues; sej kestrel
    tail                                 an open queue, and the end of its newest file: append, sync, what is on disk
    reading                              the records of a file, and the files of a queue, which may be changing
    files                                places, names, locks, kept bytes; limits of a queue and its clock
    fast, errors                         the compiled part, the errors
    transfer                             what moving to a SEJ journal and back has in common
"""

from kestrel import segmented
from kestrel.errors import Damage, DamageError, KestrelError
from kestrel.transfer import Moved
from kestrel.v2.contents import export, import_, pack
from kestrel.v2.format import Operation
from kestrel.v2.items import Counters, Item
from kestrel.v2.journal import read_journal
from kestrel.v2.queue import Queue
from kestrel.v2.replay import State, replay

__all__ = [
    "Counters",
    "Damage",
    "DamageError",
    "Item",
    "KestrelError",
    "Moved",
    "Operation",
    "Queue",
    "State",
    "export",
    "import_",
    "pack",
    "read_journal",
    "replay",
    "segmented",
]
