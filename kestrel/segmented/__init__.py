"""libkestrel's (Kestrel 3) files: writer files hold every item, reader files what each reader has confirmed."""

from kestrel.segmented.codec import Item
from kestrel.segmented.files import Bookmark, read_reader_file, read_writer_file
from kestrel.segmented.moving import export, import_
from kestrel.segmented.queue import Queue
from kestrel.segmented.reader import Reader
from kestrel.segmented.state import State, load

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
