"""Outbox and inbox: rows are moved if they were committed, once, and each message has one effect, through kills.

The databases are files of SQLite, and a PostgreSQL server that the tests start.
"""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.contrib import outbox as module
from sej.contrib.inbox import Inbox
from sej.contrib.outbox import Outbox, Relay
from tests.cli.command import sej as command
from tests.cli.command import start
from tests.contrib.programs import connect, effect, run
from tests.forking import Piped
from tests.sej.hooks import PATIENCE_S, Worker
from tests.sej.support import read_all, values

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


@contextmanager
def opened(database: str) -> Iterator[Any]:
    with closing(connect(database)) as connection:
        Outbox().create(connection)
        connection.commit()
        yield connection


def test_rows_are_moved_if_their_transaction_was_committed(database: str, tmp_path: Path) -> None:
    journal, relay = tmp_path / "j", Relay(database, tmp_path / "j", batch_rows=2)
    assert relay.run_once() == 0
    assert not journal.exists()
    with opened(database) as db:
        for number in range(5):
            Outbox().put(db, b"%d" % number, b"k", 7)
        assert relay.run_once() == 0
        db.commit()
        Outbox().put(db, b"rolled back")
        db.rollback()
        assert relay.run_once() == 5
        Outbox().put(db, bytearray(b"later"))
        db.commit()
    assert relay.run_once() == 1
    assert relay.run_once() == 0
    messages = read_all(journal)
    assert values(messages) == [*(b"%d" % number for number in range(5)), b"later"]
    assert {(message.key, message.type) for message in messages[:5]} == {(b"k", 7)}


def test_what_a_journal_cannot_hold_is_refused_by_put(database: str) -> None:
    with opened(database) as db:
        for key, kind in ((b"k" * 128, 0), (b"k", 256)):
            with pytest.raises(sej.InvalidMessageError):
                Outbox().put(db, b"", key, kind)
        with pytest.raises(TypeError, match="value must be bytes"):
            Outbox().put(db, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="connection must be one of sqlite3 or psycopg 3, got str"):
        Outbox().put(database, b"v")
    with pytest.raises(sej.InvalidNameError, match="table"):
        Outbox("rows; DROP TABLE orders")


def test_a_transaction_that_commits_late_is_moved_too(server: Server, tmp_path: Path) -> None:
    """Its rows have lower ids than rows that were moved before."""
    database = server.database()
    with opened(database) as early, closing(connect(database)) as late:
        Outbox().put(early, b"low id")
        Outbox().put(late, b"high id")
        late.commit()
        assert Relay(database, tmp_path / "j").run_once() == 1
        early.commit()
    assert Relay(database, tmp_path / "j").run_once() == 1
    assert values(read_all(tmp_path / "j")) == [b"high id", b"low id"]


def test_databases_and_relays_that_share_a_journal_take_turns(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.db", "b.db")]
    for name in names:
        with opened(name) as db:
            for number in range(30):
                Outbox().put(db, f"{Path(name).name} {number}".encode())
            db.commit()
    relays = [Relay(name, tmp_path / "j", batch_rows=4) for name in [*names, *names]]
    for worker in [Worker(relay.run_once) for relay in relays]:
        worker.result()
    found = values(read_all(tmp_path / "j"))
    for name in ("a.db", "b.db"):
        assert [value for value in found if value.startswith(name.encode())] == [
            b"%s %d" % (name.encode(), n) for n in range(30)
        ]


def test_a_relay_wakes_when_rows_are_committed(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 3600.0)
    stop = threading.Event()
    with opened(database) as db:
        running = Worker(lambda: Relay(database, tmp_path / "j").run(stop=stop))
        with sej.Writer(tmp_path / "j"), sej.Scanner(tmp_path / "j", timeout=PATIENCE_S) as scanner:
            Outbox().put(db, b"first")  # the relay waits for the writer of this block
            db.commit()
            assert scanner.read(1, timeout=0.0) == []
        with sej.Scanner(tmp_path / "j", timeout=PATIENCE_S) as scanner:
            assert values(scanner.read(1)) == [b"first"]
            for number in range(3):
                Outbox().put(db, b"%d" % number)
                db.commit()
                assert values(scanner.read(1)) == [b"%d" % number]
            if database.startswith("postgresql:"):
                request.getfixturevalue("server").kill()
                with closing(connect(database)) as again:
                    Outbox().put(again, b"after a crash")
                    again.commit()
                assert values(scanner.read(1)) == [b"after a crash"]
        stop.set()
        running.result()


def test_rows_are_items_of_a_work_queue(tmp_path: Path) -> None:
    database = str(tmp_path / "shop.db")
    with sej.open_queue(tmp_path / "q", "mails") as queue, opened(database) as db:
        queue.put(b"direct")
        Outbox().put(db, b"from the outbox")
        db.commit()
        assert Relay(database, tmp_path / "q").run_once() == 1
        for expected in (b"direct", b"from the outbox"):
            item = queue.get(timeout=0)
            assert item is not None and item.value == expected
            item.done()


@pytest.mark.parametrize("program", ["relay", "inbox"])
def test_a_program_that_is_killed_at_any_statement_loses_and_repeats_nothing(
    database: str, program: str, tmp_path: Path
) -> None:
    expected: list[bytes] = []
    at, code = 1, -signal.SIGKILL
    # With PostgreSQL a kill costs a second: only `make torture` has each.
    step = 5 if database.startswith("postgresql:") and "SEJ_TORTURE_S" not in os.environ else 1
    with opened(database) as db:
        db.cursor().execute("CREATE TABLE effects (number TEXT)")
        db.commit()
        while code == -signal.SIGKILL:
            at += step
            for _ in range(3):
                expected.append(b"%d" % len(expected))
                Outbox().put(db, expected[-1])
            db.commit()
            if program == "inbox":
                Relay(database, tmp_path / "j").run_once()
            child = run("dying", database, tmp_path / "j", program, at)
            child.communicate()
            code = child.wait()
        assert code == 0 and at > 12
        assert Relay(database, tmp_path / "j").run_once() == 0
        assert values(read_all(tmp_path / "j")) == expected
        Inbox(db, tmp_path / "j", "effects", timeout=0.0).run(effect)
        assert column(db, "effects") == expected


def column(db: Any, table: str) -> list[bytes]:
    cursor = db.cursor()
    cursor.execute(f"SELECT number FROM {table}")
    found = [row[0].encode() for row in cursor.fetchall()]
    db.commit()
    return found


def test_everything_is_killed_and_each_row_has_one_effect(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    dice, journal = random.Random(40), tmp_path / "j"
    sej.Writer(journal).close()
    with opened(database) as db:
        for table in ("orders", "effects"):
            db.cursor().execute(f"CREATE TABLE {table} (number TEXT)")
        db.commit()
    running: dict[str, Piped] = {}
    try:
        for number in range(12):
            for name, word in (("application", number), ("relay", journal), ("inbox", journal)):
                if name not in running:
                    running[name] = run(name, database, word)
            for _ in range(dice.randrange(10, 40)):
                assert running["application"].stdout.readline() == b"committed\n"
            for name in [name for name in running if name == "application" or dice.random() < 0.6]:
                child = running.pop(name)
                child.kill()
                assert child.communicate()[1] == b"" and child.wait() == -signal.SIGKILL, name
            if number == 6 and database.startswith("postgresql:"):
                for child in running.values():
                    child.kill()
                    child.communicate()
                running.clear()
                request.getfixturevalue("server").kill()
    finally:
        for child in running.values():
            child.kill()
            child.communicate()
    Relay(database, journal).run_once()
    with closing(connect(database)) as db:
        Inbox(db, journal, "effects", timeout=0.0).run(effect)
        orders, effects = column(db, "orders"), column(db, "effects")
    moved = values(read_all(journal))
    assert len(moved) > 100
    assert moved == effects
    assert sorted(moved) == sorted(orders)


def test_the_command_moves_once_and_is_started_again_when_it_is_killed(tmp_path: Path) -> None:
    database, path = str(tmp_path / "shop.db"), tmp_path / "j"
    with opened(database) as db:
        Outbox().put(db, b"a")
        db.commit()
        assert command("relay", "--once", database, path).stdout == b"1 row\n"
        with start("relay", database, path) as relay, sej.Scanner(path, 1, timeout=PATIENCE_S) as scanner:
            for number in range(2):
                Outbox().put(db, b"%d" % number)
                db.commit()
                assert values(scanner.read(1)) == [b"%d" % number]
                children = Path(f"/proc/{relay.pid}/task/{relay.pid}/children").read_text().split()
                if number == 0:
                    subprocess.run(["kill", "-KILL", *children], check=True)
            relay.terminate()
            assert relay.wait(PATIENCE_S) == 0


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    assert command("relay", "--once", "shop.db", tmp_path / "j", "--table", "x;y").returncode == 2
    missing = command("relay", "--once", tmp_path / "missing.db", tmp_path / "j")
    assert missing.returncode == 4
    text = f"sej: the database cannot be used: {tmp_path / 'missing.db'}: unable to open database file\n"
    assert missing.stderr.decode() == text


def test_a_wrong_database_is_an_error_of_run_once(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        Relay(tmp_path / "missing.db", tmp_path / "j").run_once()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def db(database: str) -> Iterator[Any]:
    with closing(connect(database)) as connection:
        connection.cursor().execute("CREATE TABLE effects (number TEXT)")
        connection.commit()
        yield connection


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    with sej.Writer(tmp_path / "j", segment_bytes=100) as w:
        w.append_many([b"%d" % number for number in range(10)])
    return tmp_path / "j"


def effects(db: Any) -> list[int]:
    return [int(number) for number in column(db, "effects")]


def opened_inbox(db: Any, journal: Path, **options: Any) -> Inbox:
    return Inbox(db, journal, "r", timeout=0.0, **{"batch_messages": 4, **options})


def set_next(db: Any, offset: int) -> None:
    db.cursor().execute(f"UPDATE sej_inbox SET next_offset = {offset}")
    db.commit()


def test_each_message_has_one_effect_whatever_the_readers_offset_is(db: Any, journal: Path) -> None:
    assert opened_inbox(db, journal).run(effect) == 10
    assert sej.read_offset(journal, "r") == 10
    with sej.Offset(journal, "r") as kept:
        kept.reset(3)  # as if the process had died before its commit
    assert opened_inbox(db, journal).run(effect) == 0
    assert effects(db) == list(range(10))
    db.cursor().execute("DELETE FROM effects WHERE number IN ('8', '9')")
    set_next(db, 8)  # as if the database had lost its last commits
    assert opened_inbox(db, journal).run(effect) == 2
    assert effects(db) == list(range(10))


def test_an_effect_that_fails_leaves_nothing_and_the_messages_before_it_stay(db: Any, journal: Path) -> None:
    def fail(db: Any, message: sej.Message) -> None:
        effect(db, message)
        if message.offset == 6:
            raise ArithmeticError("no")

    with pytest.raises(sej.RetriesExhaustedError, match="no"):
        opened_inbox(db, journal, max_attempts=2).run(fail)
    assert effects(db) == list(range(6))
    assert opened_inbox(db, journal).run(effect) == 4
    assert effects(db) == list(range(10))


def test_a_reader_begins_where_it_is_told_once(db: Any, journal: Path) -> None:
    assert opened_inbox(db, journal, default=7).run(effect) == 3
    assert opened_inbox(db, journal, default=0).run(effect) == 0
    assert effects(db) == [7, 8, 9]


def test_an_offset_that_cannot_be_right_is_refused(db: Any, journal: Path, tmp_path: Path) -> None:
    opened_inbox(db, journal).run(effect)
    set_next(db, 11)
    with pytest.raises(sej.OffsetBeyondEndError, match=r"offset 11 .* ends at 10"):
        opened_inbox(db, journal).run(effect)
    set_next(db, 2)
    sej.Journal(journal).clean(max_bytes=0)
    with pytest.raises(sej.OffsetTooSmallError):
        opened_inbox(db, journal).run(effect)
    set_next(db, 1)
    with sej.Writer(tmp_path / "other") as w:
        w.append(b"1")
    with pytest.raises(sej.JournalNotFoundError, match="delete the reader's row from sej_inbox"):
        opened_inbox(db, tmp_path / "other").run(effect)
    assert effects(db) == list(range(10))


def test_an_effect_may_not_end_the_transaction(db: Any, journal: Path) -> None:
    def commit(db: Any, message: sej.Message) -> None:
        effect(db, message)
        db.commit()

    with pytest.raises(sej.RetriesExhaustedError):
        opened_inbox(db, journal, max_attempts=1, batch_messages=1).run(commit)
    assert len(effects(db)) <= 1


def test_the_callers_rows_and_its_transaction_are_its_own(server: Server, journal: Path) -> None:
    with closing(connect(server.database())) as db:
        db.row_factory = import_module("psycopg.rows").dict_row
        db.execute("CREATE TABLE effects (number TEXT)")
        with pytest.raises(sej.SejError, match="a transaction of this connection is under way"):
            opened_inbox(db, journal).run(effect)
        db.commit()
        assert opened_inbox(db, journal).run(effect) == 10
        assert opened_inbox(db, journal).run(effect) == 0


def test_a_connection_of_another_library_is_refused(journal: Path) -> None:
    with pytest.raises(TypeError, match="connection must be one of sqlite3 or psycopg 3, got str"):
        Inbox("shop.db", journal, "r")
    with closing(sqlite3.connect(":memory:")) as db, pytest.raises(sej.InvalidNameError, match="table"):
        Inbox(db, journal, "r", table="No Table")
