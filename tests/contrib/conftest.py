"""The databases of the tests of outbox and inbox: files of SQLite, and a PostgreSQL server that the tests start."""

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

NO_POSTGRES = (
    "no PostgreSQL server was found, so outbox and inbox are tested with SQLite alone: `apt-get install postgresql`"
)
NO_PSYCOPG = "psycopg is missing, so outbox and inbox are tested with SQLite alone: run `make setup`"


class Server:
    """A cluster of its own, reached through a socket in its folder."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        self.folder = tempfile.mkdtemp(prefix="sej-pg-", dir="/tmp")  # the path of a socket is short
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        self.run("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-D", f"{self.folder}/data")
        self.start()
        self.count = 0

    def run(self, program: str, *arguments: str) -> None:
        words = [str(self.binaries / program), *arguments]
        subprocess.run(words, user=self.user, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, timeout=120)

    def start(self) -> None:
        # Without fsync: processes die here, and not the machine.
        options = f"-k {self.folder} -c listen_addresses= -c max_connections=40 -c fsync=off"
        log = f"{self.folder}/log"
        self.run("pg_ctl", "-w", "-D", f"{self.folder}/data", "-l", log, "-o", options, "start")

    def stop(self, mode: str) -> None:
        self.run("pg_ctl", "-w", "-D", f"{self.folder}/data", "-m", mode, "stop")

    def kill(self) -> None:
        """Kill all its processes, as a crash does, and start it again."""
        self.stop("immediate")
        self.start()

    def database(self) -> str:
        """Create an empty database, and return its URL."""
        self.count += 1
        url = f"postgresql:///postgres?host={self.folder}&user=postgres"
        with import_module("psycopg").connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE test{self.count}")
        return url.replace("/postgres?", f"/test{self.count}?")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip(NO_POSTGRES)
    pytest.importorskip("psycopg", reason=NO_PSYCOPG)
    server = Server(found[-1].parent)
    try:
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(server.folder, ignore_errors=True)


def connect(database: str) -> Any:
    """Open a connection as a program does."""
    if database.startswith("postgresql:"):
        return import_module("psycopg").connect(database)
    return sqlite3.connect(database, timeout=30)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The path or the URL of a database without tables."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("server").database()
        return url
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return str(path)
