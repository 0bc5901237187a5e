"""Spark's Python processes, forked from one that has imported what they import.

For each format, step of a plan and stream, Spark starts an interpreter, which imports for half a second. In the
session that the tests share, ``PYSPARK_PYTHON`` is a small program instead. It hands its arguments, environment,
directory and standard streams to a server, and waits for the end of the child that the server forks. The child runs
``python -m MODULE WORDS`` or ``python -c TEXT`` as a fresh interpreter would. Without a server, the program
becomes a fresh interpreter. What JVMs of other tests start are fresh interpreters too.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.forking import launch

_MODULES: Final = (
    "pandas",
    "pipeline.formats",
    "pipeline.writing.on_file",
    "pipeline.reading.task",
    "pyspark.daemon",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
)
_FIXED: Final = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1"}
"""Variables that the server has too: an interpreter, or a library, reads them at its start. Spark sets the first."""

# It imports only what is part of the interpreter, so it starts in ten milliseconds.
_PROGRAM: Final = """\
#!{python} -IS
import _socket, marshal, posix, sys
try:
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    server.connect({path!r})
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    request = marshal.dumps((posix.getcwd(), posix.environ, sys.argv[1:]))
    server.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
except OSError:
    posix.execv({python!r}, [{python!r}, *sys.argv[1:]])
for number in range(3):
    posix.close(number)
server.recv(100)  # its process id
posix._exit(int(server.recv(100) or b"1") & 0xFF)
"""


@contextmanager
def forking_python(folder: Path) -> Iterator[str]:
    """Start a server and return the path of the program that takes the place of an interpreter; then end the server."""
    import pyspark

    path, program = folder / "forks", folder / "python"
    program.write_text(_PROGRAM.format(python=sys.executable, path=str(path)))
    program.chmod(0o700)
    archives = sorted(map(str, Path(pyspark.__path__[0], "python", "lib").glob("*.zip")))
    env = {**os.environ, **_FIXED, "PYTHONPATH": os.pathsep.join(archives)}
    with launch(str(path), _MODULES, ["-W", "ignore"], env, session=True):
        yield str(program)
