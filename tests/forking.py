"""Programs of this project as processes of their own, started in a tenth of the time.

A fresh interpreter spends most of a short test on imports. A :class:`Forkserver` is a fresh interpreter that imports
once. For each call it forks, and the child runs the program as ``python -m NAME WORDS`` would. The child has its own
standard streams, its own locks and its own exit, so a test sees what it would see of any other process. Three things
differ: the child's modules are imported already, variables of the environment that an interpreter or a module reads at
its start have the server's values, and the child does not free the modules at its end. A test of one of these starts a
fresh interpreter instead.

The server is this module, run as ``python -m tests.forking NUMBER MODULE...``. NUMBER is the descriptor of the socket
at which it listens. A request has a directory, an environment, the words of a program, and its standard streams. The
answers are the process id of the child, with a handle, and its exit code. The child of a
caller that closes its socket is ended.
"""

import atexit
import gc
import marshal
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from types import TracebackType
from typing import IO, Final, Self

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

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

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


class Piped(Program):
    """A program with pipes, as an object of :class:`subprocess.Popen` with pipes.

    Attributes:
        stdin: its standard input; None if that is empty.
        stdout: its standard output.
        stderr: its standard error.
    """

    def __init__(self, words: Sequence[str], answers: socket.socket, pipes: Sequence[int]) -> None:
        self.stdout: IO[bytes] = os.fdopen(pipes[0], "rb")
        self.stderr: IO[bytes] = os.fdopen(pipes[1], "rb")
        self.stdin: IO[bytes] | None = os.fdopen(pipes[2], "wb") if len(pipes) > 2 else None
        super().__init__(words, answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the pipes, and wait for its end; kill it if the block raised, because it may never end."""
        if kind is not None:
            self.kill()
        self.stdout.close()
        self.stderr.close()
        self._end_input()
        self.wait()

    def communicate(self, data: bytes = b"", timeout: float = _TIMEOUT_S) -> tuple[bytes, bytes]:
        """Feed it, wait for its end, close the pipes and return what it printed; kill it after timeout seconds."""
        printed = [b"", b""]

        def read(at: int, pipe: IO[bytes]) -> None:
            printed[at] = pipe.read()

        readers = [threading.Thread(target=read, args=each) for each in enumerate((self.stdout, self.stderr))]
        for reader in readers:
            reader.start()
        try:
            if self.stdin is not None and data:
                with suppress(BrokenPipeError):
                    self.stdin.write(data)
            self._end_input()
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            for reader in readers:
                reader.join()
        self.stdout.close()
        self.stderr.close()
        return printed[0], printed[1]

    def _end_input(self) -> None:
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.close()


class Forkserver:
    """An interpreter that has imported some modules, and forks for each program that it is asked to run."""

    def __init__(self, *modules: str, options: Sequence[str] = (), env: dict[str, str]) -> None:
        """Start it.

        Args:
            modules: what it imports.
            options: of the interpreter, e.g. ``["-W", "error"]``.
            env: its whole environment.
        """
        self._folder = tempfile.TemporaryDirectory()
        self._path, self._env = os.path.join(self._folder.name, "forks"), env
        self._server = launch(self._path, modules, options, env)
        atexit.register(self.close)

    def close(self) -> None:
        """End the server."""
        with self._server, self._folder:
            pass

    def start(self, words: Sequence[str], streams: Sequence[int]) -> Program:
        """Start ``python -m WORDS`` in the current directory, with these descriptors as its standard streams."""
        return Program(words, self._request(words, streams, {}))

    def pipe(self, words: Sequence[str], *, stdin: bool = False, env: dict[str, str] | None = None) -> Piped:
        """Start ``python -m WORDS`` in the current directory, with pipes.

        Args:
            words: the module and its arguments.
            stdin: whether its standard input is a pipe too; otherwise it is empty.
            env: variables that are added to its environment.
        """
        (out, stdout), (err, stderr) = os.pipe(), os.pipe()
        ours, streams = [out, err], [stdout, stderr]
        if stdin:
            theirs, feed = os.pipe()
            ours.append(feed)
        else:
            theirs = os.open(os.devnull, os.O_RDONLY)
        try:
            answers = self._request(words, [theirs, *streams], env or {})
        finally:
            for number in (theirs, *streams):
                os.close(number)
        return Piped(words, answers, ours)

    def run(
        self, words: Sequence[str], *, stdin: bytes, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``python -m WORDS`` to its end; the caller judges the exit code."""
        with self.pipe(words, stdin=True, env=env) as program:
            printed = program.communicate(stdin)
        return subprocess.CompletedProcess(list(words), program.wait(), *printed)

    def _request(self, words: Sequence[str], streams: Sequence[int], env: dict[str, str]) -> socket.socket:
        environment = {os.fsencode(name): os.fsencode(value) for name, value in {**self._env, **env}.items()}
        asking = _socket()
        asking.connect(self._path)
        socket.send_fds(asking, [marshal.dumps((os.getcwd(), environment, ["-m", *words]))], streams)
        return asking


def _socket() -> socket.socket:
    """A socket that keeps messages apart."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def launch(
    path: str, modules: Sequence[str], options: Sequence[str], env: dict[str, str], *, session: bool = False
) -> subprocess.Popen[bytes]:
    """Start a server that listens at a path. It ends when its standard input does."""
    with _socket() as listening:
        listening.bind(path)
        listening.listen(64)
        number = listening.fileno()
        command = [sys.executable, *options, "-m", "tests.forking", str(number), *modules]
        # Pipes, because the objects in sys that the children inherit know what they were opened for.
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[number],
            env=env,
            start_new_session=session,
        )


def serve(number: int, modules: Sequence[str]) -> list[str]:
    """Fork for each request until standard input ends; returns in each child, with its words."""
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    known = [place for place in sys.path[1:] if place not in path]  # the first one is this directory
    for module in modules:
        import_module(module)
    gc.collect()
    gc.freeze()  # a child collects its own garbage only: going through all modules took four fifths of a short command
    running: dict[int, tuple[int, socket.socket]] = {}  # by its handle: the child, and its caller
    with socket.socket(fileno=number) as server, selectors.DefaultSelector() as waiting:
        waiting.register(server, selectors.EVENT_READ)
        waiting.register(0, selectors.EVENT_READ)
        while True:
            key, _ = waiting.select()[0]  # the others come again, unless this one closes what they are about
            if key.fd == 0:
                sys.exit()
            if key.fileobj is not server:
                _end(key, running, waiting)
                continue
            asked, _ = server.accept()
            request, streams, _, _ = socket.recv_fds(asked, _REQUEST_BYTES, 3)
            if not request:  # the caller was ended
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
            for each in streams:
                os.close(each)
            handle = os.pidfd_open(child)
            running[handle] = child, asked
            waiting.register(handle, selectors.EVENT_READ)
            waiting.register(asked, selectors.EVENT_READ, handle)
            with suppress(OSError):
                socket.send_fds(asked, [b"%d" % child], [handle])


def _end(
    key: selectors.SelectorKey, running: dict[int, tuple[int, socket.socket]], waiting: selectors.BaseSelector
) -> None:
    """Report the end of a child, or end the child of a caller that was ended."""
    waiting.unregister(key.fileobj)
    if key.fd not in running:
        signal.pidfd_send_signal(key.data, signal.SIGTERM)
        return
    child, asked = running.pop(key.fd)
    os.close(key.fd)
    with suppress(KeyError):
        waiting.unregister(asked)
    with asked, suppress(OSError):
        asked.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _become(streams: list[int], request: tuple[str, dict[bytes, bytes], list[str]], known: list[str]) -> list[str]:
    """Take over the standard streams, the directory, the environment and its import path; returns the words."""
    for place, each in enumerate(streams):
        os.dup2(each, place)
        os.close(each)
    directory, environment, words = request
    os.chdir(directory)
    os.environb.clear()
    os.environb.update(environment)
    added = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [directory, *added, *known]
    return words


def run(words: list[str]) -> None:
    """Run ``-m MODULE WORDS`` or ``-c TEXT WORDS``."""
    way, what, *rest = words
    sys.argv = [what if way == "-m" else way, *rest]
    if way == "-m":
        run_main(what)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


def run_main(name: str) -> None:
    """Run a module as a program and end this process; returns or raises if the interpreter has something to print.

    To free all modules would copy the memory that the child shares with the server: two thirds of a short command.
    """
    if not hasattr(sys.modules.get(name), "__path__"):
        sys.modules.pop(name, None)  # what was imported of a program is what it imports itself
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
    run(serve(int(sys.argv[1]), sys.argv[2:]))
