"""Programs of this project as processes of their own, started in a tenth of the time.

A fresh interpreter spends most of a short test on imports. A :class:`Forkserver` is a fresh interpreter that imports
once. For each call it forks, and the child runs the program to its end, as ``python -m NAME WORDS`` would. The child
has its own pipes, its own locks and its own exit, so a test sees what it would see of any other process. Two things
differ: the child's modules are imported already, and its environment is the server's. A test of either starts a fresh
interpreter instead.

The server is this module, run as ``python -m tests.forking NUMBER MODULE...``. NUMBER is the descriptor of its socket.
"""

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

__all__ = ["Forkserver"]

_REQUEST_BYTES = 1 << 20
_TIMEOUT_S = 60


class Forkserver:
    """An interpreter that has imported some modules, and forks for each program that it is asked to run."""

    def __init__(self, *modules: str, options: Sequence[str], env: dict[str, str]) -> None:
        """Start it.

        Args:
            modules: what it imports.
            options: of the interpreter, e.g. ``["-W", "error"]``.
            env: its whole environment.
        """
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_TIMEOUT_S)
        number = theirs.fileno()
        command = [sys.executable, *options, "-m", "tests.forking", str(number), *modules]
        # Pipes, because the objects in sys that the children inherit know what they were opened for.
        with theirs:
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[number], env=env, process_group=0
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server."""
        self._socket.close()
        with self._server:
            pass

    def run(self, words: Sequence[str], *, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        """Run ``python -m WORDS`` to its end; the caller judges the exit code."""
        with self._lock:
            (stdin_of_child, feed), (out, stdout_of_child), (err, stderr_of_child) = (os.pipe() for _ in range(3))
            given = [stdin_of_child, stdout_of_child, stderr_of_child]
            socket.send_fds(self._socket, [json.dumps([os.getcwd(), *words]).encode()], given)
            for number in given:
                os.close(number)
            printed = [b"", b""]

            def read(at: int, number: int) -> None:
                with open(number, "rb") as pipe:
                    printed[at] = pipe.read()

            readers = [threading.Thread(target=read, args=each) for each in enumerate((out, err))]
            for reader in readers:
                reader.start()
            with suppress(BrokenPipeError), open(feed, "wb", buffering=0) as pipe:
                pipe.write(stdin)
            try:
                code = int(self._socket.recv(_REQUEST_BYTES))
            except TimeoutError:
                os.killpg(self._server.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(words), _TIMEOUT_S) from None
            finally:
                for reader in readers:
                    reader.join()
        return subprocess.CompletedProcess(list(words), code, *printed)


def serve(number: int, modules: Sequence[str]) -> list[str]:
    """Fork for each request until the caller has closed the socket; returns in each child, with its words."""
    for module in modules:
        import_module(module)
    requests = socket.socket(fileno=number)
    while True:
        request, given, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 3)
        if not request:
            requests.close()
            sys.exit()
        child = os.fork()
        if child == 0:
            break
        for each in given:
            os.close(each)
        _, status = os.waitpid(child, 0)
        requests.send(b"%d" % os.waitstatus_to_exitcode(status))
    requests.close()
    for place, each in enumerate(given):
        os.dup2(each, place)
        os.close(each)
    directory, *words = json.loads(request)
    os.chdir(directory)
    return list(words)


if __name__ == "__main__":
    sys.argv = serve(int(sys.argv[1]), sys.argv[2:])
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
