"""The programs around an outbox, each a process of its own that may be killed: ``python -m`` NAME DATABASE WORDS."""

import functools
import os
import random
import signal
import sqlite3
import sys
from importlib import import_module
from typing import Any

import sej
from sej.contrib.database import Postgres, Sqlite
from sej.contrib.inbox import Inbox
from sej.contrib.outbox import Outbox, Relay
from tests.crash.harness import ROOT
from tests.forking import Forkserver, Piped


def connect(database: str) -> Any:
    """Open a connection as a program does."""
    if database.startswith("postgresql:"):
        return import_module("psycopg").connect(database)
    return sqlite3.connect(database, timeout=30)


@functools.cache
def _forkserver() -> Forkserver:
    return Forkserver("tests.contrib.programs", env={**os.environ, "PYTHONPATH": str(ROOT)})


def run(name: str, *words: object) -> Piped:
    """Start one of the programs below."""
    return _forkserver().pipe(["tests.contrib.programs", name, *map(str, words)])


def application(database: str, seed: str) -> None:
    """Store orders without end, each with a message in the outbox; some transactions are rolled back."""
    dice, db, outbox = random.Random(seed), connect(database), Outbox()
    while True:
        for _ in range(dice.randrange(1, 4)):
            order = f"{dice.getrandbits(64):x}"
            db.cursor().execute(f"INSERT INTO orders VALUES ('{order}')")
            outbox.put(db, order.encode())
        if dice.random() < 0.2:
            db.rollback()
        else:
            db.commit()
            print("committed", flush=True)


def relay(database: str, journal: str) -> None:
    """Move rows without end."""
    Relay(database, journal, batch_rows=5).run()


def effect(db: Any, message: sej.Message) -> None:
    """Store a message."""
    db.cursor().execute(f"INSERT INTO effects VALUES ('{message.value.decode()}')")


def inbox(database: str, journal: str, timeout: float | None = None) -> None:
    """Apply messages until the timeout; without one, until the process is killed."""
    Inbox(connect(database), journal, "effects", batch_messages=7, timeout=timeout).run(effect)


def dying(database: str, journal: str, program: str, at: str) -> None:
    """Move or apply what is there, and die by SIGKILL before (even) or after (odd) a statement."""
    kind: Any = Postgres if database.startswith("postgresql:") else Sqlite
    real, calls = kind.execute, 0

    def execute(self: Any, statement: str, *values: Any) -> Any:
        nonlocal calls
        calls += 1
        if 2 * calls == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(self, statement, *values)
        if 2 * calls + 1 == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    kind.execute = execute
    if program == "relay":
        Relay(database, journal, batch_rows=2).run_once()
    else:
        inbox(database, journal, 0.0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
