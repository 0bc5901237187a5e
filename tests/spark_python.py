"""Spark's Python processes, forked from one that has imported what they import.

For each format, step of a plan and stream, Spark starts an interpreter, which imports for half a second. In the
session that the tests share, ``PYSPARK_PYTHON`` is a small program instead. It hands its arguments, environment,
directory and standard streams to a server, and waits for the end of the child that the server forks. The child runs
``python -m MODULE WORDS`` or ``python -c TEXT`` as a fresh interpreter would. Without a server, the program
becomes a fresh interpreter. What JVMs of other tests start are fresh interpreters too.

The server is this module, run as ``python -m tests.spark_python SOCKET``. It ends when its standard input does.
"""

import gc
import importlib
import marshal
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.forking import run_main

_REQUEST_BYTES: Final = 1 << 20
_MODULES: Final = (
    "pandas",
    "pipeline.formats.rows",
    "pipeline.formats.sej",
    "pipeline.formats.textqueue",
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
posix._exit(int(server.recv(100) or b"1"))
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
    command = [sys.executable, "-W", "ignore", "-m", "tests.spark_python", str(path)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=env, start_new_session=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", "the server ended: its standard error says why"
        yield str(program)


def _serve(path: str) -> list[str]:
    """Fork for each request until standard input ends; returns in each child, with its arguments."""
    archives = os.environ["PYTHONPATH"].split(os.pathsep)
    known = [place for place in sys.path[1:] if place not in archives]  # the first one is this directory
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, socket.socket]] = {}  # by what is waited for: the child, and its caller
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server, selectors.DefaultSelector() as waiting:
        server.bind(path)
        server.listen(64)
        waiting.register(server, selectors.EVENT_READ)
        waiting.register(0, selectors.EVENT_READ)
        os.write(1, b"ready\n")
        while True:
            key, _ = waiting.select()[0]  # the others come again, unless this one closes what they are about
            if key.fd == 0:
                sys.exit()
            if key.fileobj is not server:
                _end(key, running, waiting)
                continue
            asked, _ = server.accept()
            request, streams, _, _ = socket.recv_fds(asked, _REQUEST_BYTES, 3)
            if not request:  # the program was ended
                asked.close()
                continue
            if (child := os.fork()) == 0:
                waiting.close()
                for handle, (_, other) in running.items():
                    os.close(handle)
                    other.close()
                server.close()
                asked.close()
                return _become(streams, marshal.loads(request), known)
            for number in streams:
                os.close(number)
            handle = os.pidfd_open(child)
            running[handle] = child, asked
            waiting.register(handle, selectors.EVENT_READ)
            waiting.register(asked, selectors.EVENT_READ, handle)


def _end(
    key: selectors.SelectorKey, running: dict[int, tuple[int, socket.socket]], waiting: selectors.BaseSelector
) -> None:
    """Report the end of a child, or end the child of a program that was ended."""
    waiting.unregister(key.fileobj)
    if key.fd not in running:
        signal.pidfd_send_signal(key.data, signal.SIGTERM)
        return
    child, asked = running.pop(key.fd)
    os.close(key.fd)
    with suppress(KeyError):
        waiting.unregister(asked)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with asked, suppress(OSError):
        asked.send(b"%d" % (code & 0xFF))


def _become(streams: list[int], request: tuple[str, dict[bytes, bytes], list[str]], known: list[str]) -> list[str]:
    """Take over the standard streams, the directory, the environment and its import path; returns the arguments."""
    for place, number in enumerate(streams):
        os.dup2(number, place)
        os.close(number)
    directory, environment, words = request
    os.chdir(directory)
    os.environb.clear()
    os.environb.update(environment)
    added = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [directory, *added, *known]
    return words


def _run(words: list[str]) -> None:
    """Run ``-m MODULE WORDS`` or ``-c TEXT WORDS``."""
    way, what, *rest = words
    sys.argv = [what if way == "-m" else way, *rest]
    if way == "-m":
        sys.modules.pop(what, None)  # else Python warns that its imported module is not what runs
        run_main(what)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    _run(_serve(sys.argv[1]))
