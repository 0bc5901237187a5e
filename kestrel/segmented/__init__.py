"""libkestrel's (Kestrel 3) files: writer files hold every item, reader files what each reader has confirmed.

The modules, in the order in which they are best read::

    format                         records, and how they are decoded and encoded
    files                          reading a file; which files are a queue, and what they add up to
    queue, journal                 the queue, its limits, and moving it; its writer files and its readers' files
    reader                         a reader: what it has taken, and what it may commit
"""

from kestrel.segmented.files import Bookmark, State, load, read_reader_file, read_writer_file
from kestrel.segmented.format import Item
from kestrel.segmented.queue import Queue, export, import_
from kestrel.segmented.reader import Reader

__all__ = [
    "Bookmark",
    "Item",
    "Queue",
    "Reader",
    "State",
    "export",
    "import_",
    "load",
    "read_reader_file",
    "read_writer_file",
]
