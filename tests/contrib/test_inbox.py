"""The inbox: the effect of each message is in the database once, whatever the consumer's own offset says."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.contrib.inbox import Inbox
from tests.contrib.conftest import Server, connect
from tests.contrib.programs import effect


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
    cursor = db.cursor()
    cursor.execute("SELECT number FROM effects")
    found = [int(row[0]) for row in cursor.fetchall()]
    db.commit()
    return found


def inbox(db: Any, journal: Path, **options: Any) -> Inbox:
    return Inbox(db, journal, "r", timeout=0.0, **{"batch_messages": 4, **options})


def set_next(db: Any, offset: int) -> None:
    db.cursor().execute(f"UPDATE sej_inbox SET next_offset = {offset}")
    db.commit()


def test_each_message_has_one_effect_whatever_the_readers_offset_is(db: Any, journal: Path) -> None:
    assert inbox(db, journal).run(effect) == 10
    assert sej.read_offset(journal, "r") == 10
    with sej.Offset(journal, "r") as kept:
        kept.reset(3)  # as if the process had died before its commit
    assert inbox(db, journal).run(effect) == 0
    assert effects(db) == list(range(10))
    db.cursor().execute("DELETE FROM effects WHERE number IN ('8', '9')")
    set_next(db, 8)  # as if the database had lost its last commits
    assert inbox(db, journal).run(effect) == 2
    assert effects(db) == list(range(10))


def test_an_effect_that_fails_leaves_nothing_and_the_messages_before_it_stay(db: Any, journal: Path) -> None:
    def fail(db: Any, message: sej.Message) -> None:
        effect(db, message)
        if message.offset == 6:
            raise ArithmeticError("no")

    with pytest.raises(sej.RetriesExhaustedError, match="no"):
        inbox(db, journal, max_attempts=2).run(fail)
    assert effects(db) == list(range(6))
    assert inbox(db, journal).run(effect) == 4
    assert effects(db) == list(range(10))


def test_a_reader_begins_where_it_is_told_once(db: Any, journal: Path) -> None:
    assert inbox(db, journal, default=7).run(effect) == 3
    assert inbox(db, journal, default=0).run(effect) == 0
    assert effects(db) == [7, 8, 9]


def test_an_offset_that_cannot_be_right_is_refused(db: Any, journal: Path, tmp_path: Path) -> None:
    inbox(db, journal).run(effect)
    set_next(db, 11)
    with pytest.raises(sej.OffsetBeyondEndError, match=r"offset 11 .* ends at 10"):
        inbox(db, journal).run(effect)
    set_next(db, 2)
    sej.Journal(journal).clean(max_bytes=0)
    with pytest.raises(sej.OffsetTooSmallError):
        inbox(db, journal).run(effect)
    set_next(db, 1)
    with sej.Writer(tmp_path / "other") as w:
        w.append(b"1")
    with pytest.raises(sej.JournalNotFoundError, match="delete the reader's row from sej_inbox"):
        inbox(db, tmp_path / "other").run(effect)
    assert effects(db) == list(range(10))


def test_an_effect_may_not_end_the_transaction(db: Any, journal: Path) -> None:
    def commit(db: Any, message: sej.Message) -> None:
        effect(db, message)
        db.commit()

    with pytest.raises(sej.RetriesExhaustedError):
        inbox(db, journal, max_attempts=1, batch_messages=1).run(commit)
    assert len(effects(db)) <= 1


def test_the_callers_rows_and_its_transaction_are_its_own(server: Server, journal: Path) -> None:
    with closing(connect(server.database())) as db:
        db.row_factory = import_module("psycopg.rows").dict_row
        db.execute("CREATE TABLE effects (number TEXT)")
        with pytest.raises(sej.SejError, match="a transaction of this connection is under way"):
            inbox(db, journal).run(effect)
        db.commit()
        assert inbox(db, journal).run(effect) == 10
        assert inbox(db, journal).run(effect) == 0


def test_a_connection_of_another_library_is_refused(journal: Path) -> None:
    with pytest.raises(TypeError, match="connection must be one of sqlite3 or psycopg 3, got str"):
        Inbox("shop.db", journal, "r")
    with closing(sqlite3.connect(":memory:")) as db, pytest.raises(sej.InvalidNameError, match="table"):
        Inbox(db, journal, "r", table="No Table")
