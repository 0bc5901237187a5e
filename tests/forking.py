"""Programs of this project as processes of their own, started in a tenth of the time.

A fresh interpreter spends most of a short test on imports. A :class:`Forkserver` is a fresh interpreter that imports
once. For each call it forks, and the child runs the program as ``python -m NAME WORDS`` would. The child has its own
standard streams, its own locks and its own exit, so a test sees what it would see of any other process. Three things
differ: the child's modules are imported already, its environment is the server's, and it does not free the modules at
its end. A test of one of these starts a fresh interpreter instead.

The server is this module, run as ``python -m tests.forking NUMBER MODULE...``. NUMBER is the descriptor of its socket.
"""

import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final

__all__ = ["Forkserver", "Program"]

_REQUEST_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 100
_TIMEOUT_S: Final = 60


class Program:
    """A program that a server forked. It does what an object of :class:`subprocess.Popen` without pipes does."""

    def __init__(self, words: Sequence[str], answers: socket.socket) -> None:
        self.args = list(words)
        self.returncode: int | None = None
        self._answers = answers
        answers.settimeout(_TIMEOUT_S)
        pid, handles, _, _ = socket.recv_fds(answers, _ANSWER_BYTES, 1)
        assert handles, "the fork server ended: the reason is in the standard error of the tests"
        self.pid, self._handle = int(pid), handles[0]

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal; a program that has ended gets none."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code, negative after a signal.

        Raises:
            subprocess.TimeoutExpired: it still runs after timeout seconds.
        """
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                answer = self._answers.recv(_ANSWER_BYTES)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self.returncode = int(answer)
            self._answers.close()
            os.close(self._handle)
        return self.returncode


class Forkserver:
    """An interpreter that has imported some modules, and forks for each program that it is asked to run."""

    def __init__(self, *modules: str, options: Sequence[str] = (), env: dict[str, str]) -> None:
        """Start it.

        Args:
            modules: what it imports.
            options: of the interpreter, e.g. ``["-W", "error"]``.
            env: its whole environment.
        """
        self._requests, theirs = _pair()
        number = theirs.fileno()
        command = [sys.executable, *options, "-m", "tests.forking", str(number), *modules]
        # Pipes, because the objects in sys that the children inherit know what they were opened for.
        with theirs:
            self._server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[number], env=env
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the server."""
        self._requests.close()
        with self._server:
            pass

    def start(self, words: Sequence[str], streams: Sequence[int]) -> Program:
        """Start ``python -m WORDS`` in the current directory, with these descriptors as its standard streams."""
        ours, theirs = _pair()
        with theirs:
            given = [theirs.fileno(), *streams]
            socket.send_fds(self._requests, [json.dumps([os.getcwd(), *words]).encode()], given)
        return Program(words, ours)

    def run(self, words: Sequence[str], *, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        """Run ``python -m WORDS`` to its end; the caller judges the exit code."""
        (stdin_of_child, feed), (out, stdout_of_child), (err, stderr_of_child) = (os.pipe() for _ in range(3))
        streams = [stdin_of_child, stdout_of_child, stderr_of_child]
        program = self.start(words, streams)
        for number in streams:
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
            code = program.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            program.kill()
            raise
        finally:
            for reader in readers:
                reader.join()
        return subprocess.CompletedProcess(list(words), code, *printed)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends that keep messages apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def serve(number: int, modules: Sequence[str]) -> list[str]:
    """Fork for each request until the caller has closed the socket; returns in each child, with its words."""
    for module in modules:
        import_module(module)
    gc.freeze()  # a child collects its own garbage only: going through all modules took four fifths of a short command
    requests = socket.socket(fileno=number)
    running: dict[int, tuple[int, socket.socket]] = {}  # by its handle: the child, and where its end is reported
    with selectors.DefaultSelector() as waiting:
        waiting.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fileobj is not requests:
                    waiting.unregister(key.fd)
                    child, answers = running.pop(key.fd)
                    os.close(key.fd)
                    with answers, suppress(BrokenPipeError):
                        answers.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
                    continue
                request, given, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
                if not request:
                    requests.close()
                    for _, answers in running.values():
                        answers.close()
                    sys.exit()
                place, *streams = given
                answers = socket.socket(fileno=place)
                child = os.fork()
                if child == 0:
                    for handle, (_, others) in running.items():
                        others.close()
                        os.close(handle)
                    answers.close()
                    requests.close()
                    return _become(streams, json.loads(request))
                for each in streams:
                    os.close(each)
                handle = os.pidfd_open(child)
                running[handle] = child, answers
                waiting.register(handle, selectors.EVENT_READ)
                socket.send_fds(answers, [b"%d" % child], [handle])


def _become(streams: Sequence[int], request: list[str]) -> list[str]:
    """Take over the standard streams and the directory; returns the words."""
    for place, each in enumerate(streams):
        os.dup2(each, place)
        os.close(each)
    directory, *words = request
    os.chdir(directory)
    if not hasattr(sys.modules.get(words[0]), "__path__"):
        sys.modules.pop(words[0], None)  # what was imported of a program is what it imports itself
    return words


def run_main(name: str) -> None:
    """Run a module as a program and end this process; returns or raises if the interpreter has something to print.

    To free all modules would copy the memory that the child shares with the server: two thirds of a short command.
    """
    code: object = None
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    if code is not None and not isinstance(code, int):
        sys.exit(str(code))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the interpreter tries again, and reports it as it does for any program
        sys.exit(code)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    sys.argv = serve(int(sys.argv[1]), sys.argv[2:])
    run_main(sys.argv[0])
