"""Running ``sej hub`` as a program of its own."""

import functools
import os
import subprocess

from tests.forking import Forkserver, Piped
from tests.hub.support import ROOT


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
