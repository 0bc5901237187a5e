"""What the tests of the hub share."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hub
import sej
from hub.wire import Client, Server
from sej import Message
from tests.forking import Forkserver, Piped
from tests.sej.support import packed, segments

CERTIFICATES = Path(__file__).parent / "certificates"
ROOT = Path(__file__).parent.parent.parent


def at(offset: int, timestamp: int, value: bytes = b"") -> Message:
    """A message that only its place and time tell apart."""
    return Message(offset, timestamp, 0, b"", value or b"%d" % timestamp)


@contextlib.contextmanager
def serving(root: Path, address: str = "127.0.0.1:0", **options: object) -> Iterator[tuple[hub.Store, Server]]:
    with hub.Store(root) as store, Server(store, address, **options) as server:  # type: ignore[arg-type]
        yield store, server


@contextlib.contextmanager
def connected(
    root: Path,
    client_id: str = "client-a",
    *,
    server: dict[str, Any] | None = None,
    store: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[tuple[hub.Store, Client]]:
    """A store behind a server and a client of it; the options are the client's."""
    with (
        hub.Store(root, **store or {}) as opened,
        Server(opened, "127.0.0.1:0", **server or {}) as serves,
        Client(serves.address, client_id=client_id, **options) as client,
    ):
        yield opened, client


def fill(path: Path, messages: list[Message], *, segment_bytes: int = 1 << 30) -> None:
    """Append messages with the offsets that they have."""
    first = messages[0].offset if not path.exists() else 0
    with sej.Writer(path, first_offset=first, segment_bytes=segment_bytes) as writer:
        writer.end.append_encoded(packed(messages))


def same_bytes(source: Path, copy: Path) -> None:
    """Every byte of the copy is the source's, and none is missing."""
    assert b"".join(segments(copy).values()) == b"".join(segments(source).values())


def is_prefix(source: Path, copy: Path) -> bool:
    return b"".join(segments(source).values()).startswith(b"".join(segments(copy).values()))


def until(condition: Callable[[], object], most_s: float = 60.0) -> None:
    """Look again and again, for a minute at most, until a condition holds."""
    pause, end = threading.Event(), time.monotonic() + most_s
    while not condition():
        assert time.monotonic() < end
        pause.wait(0.01)


def original_stubs(folder: Path) -> Path:
    """Generate the modules of the original's protocol in a folder, and return it."""
    words = [f"-I{Path(__file__).parent / 'original'}", f"--python_out={folder}", f"--grpc_python_out={folder}"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words, "hub.proto"], check=True)
    return folder


def old_client(tmp_path: Path) -> Callable[[str, str, str], str]:
    """Return a function that sends lines of :func:`old_rows` with an original's client, and returns what it prints."""
    stubs = original_stubs(tmp_path)

    def run(address: str, journal: str, lines: str) -> str:
        program = [sys.executable, str(Path(__file__).parent / "old_client.py"), str(stubs), address, "old", journal]
        return subprocess.run(program, input=lines, capture_output=True, text=True, check=True, timeout=120).stdout

    return run


def old_rows(messages: list[Message]) -> str:
    """Return messages as lines for :func:`old_client`."""
    texts = [message._asdict() | {"key": message.key.hex(), "value": message.value.hex()} for message in messages]
    return "".join(json.dumps(text) + "\n" for text in texts)


# --- running ``sej hub`` as a program of its own


@functools.cache
def _forkserver() -> Forkserver:
    """One for all tests of a run. To import gRPC takes longer than most commands."""
    imported = ("sej.cli.app", "hub.cli", "hub.wire.client", "hub.wire.server")
    return Forkserver(*imported, options=["-W", "error"], env={**os.environ, "PYTHONPATH": str(ROOT)})


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run ``sej hub`` to its end; the caller judges the exit code."""
    done = _forkserver().run(["sej", "hub", *map(str, words)], stdin=b"")
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


class Killed:
    """``sej hub serve`` with these words, as a program that is killed, and started again at the same address."""

    def __init__(self, *words: object) -> None:
        self._words = words
        self.start()

    def start(self) -> None:
        self._program = start("serve", *self._words)
        assert b"serving" in self._program.stdout.readline()

    def kill(self) -> None:
        self._program.kill()
        self._program.communicate()

    close = kill

    def restart(self) -> None:
        self.kill()
        self.start()


def start(*words: object, env: dict[str, str] | None = None) -> Piped:
    """Start ``sej hub`` with pipes; its standard input is empty. Variables of env are added to the environment."""
    return _forkserver().pipe(["sej", "hub", *map(str, words)], env=env)
