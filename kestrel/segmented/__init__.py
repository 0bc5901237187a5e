"""libkestrel's (Kestrel 3) files: writer files hold every item, reader files what each reader has confirmed.

The modules, in the order in which they are best read::

    format, codec                  records, one at a time and by the block
    files, scanning, state         reading files: which items count, and what the files add up to
    queue, journal, writing        the queue, its mutex and expiry, its writer files
    reader, bookmarks, hot         a reader, what it has confirmed, the compiled part
    moving, snapshot               into a SEJ journal and back; a queue for reading only
"""

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
