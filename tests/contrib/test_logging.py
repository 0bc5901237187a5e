"""JournalHandler: a program's log in a journal, which never makes the program fail."""

import errno
import json
import logging
import logging.config
import logging.handlers
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.contrib.logging import JournalHandler
from sej.system.disk import OS


class FullDisk:
    """A disk on which nothing can be created while ``full`` is set."""

    full = False

    def __getattr__(self, name: str) -> Any:
        return getattr(OS, name)

    def open(self, path: str, mode: Any) -> Any:
        if self.full and mode != "read":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return OS.open(path, mode)


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("shop.orders")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def record(text: str, *args: object, **extra: object) -> logging.LogRecord:
    """A record that only the handler under test receives: pytest's own handler raises errors of formatting."""
    return logging.makeLogRecord({"name": "shop", "msg": text, "args": args, "levelname": "INFO", **extra})


class Broken:
    """A value that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def rows(path: Path) -> list[dict[str, Any]]:
    with sej.Scanner(path) as scanner:
        return [json.loads(message.value) for message in scanner]


def test_a_record_is_one_line_of_json(tmp_path: Path, log: logging.Logger) -> None:
    log.addHandler(JournalHandler(tmp_path / "log", durability="os"))
    log.warning("order %d", 17, extra={"customer": "zoë", "paid": False})
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("it\nfailed", stack_info=True)
    first, second = rows(tmp_path / "log")
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "shop.orders",
        "message": "order 17",
        "customer": "zoë",
        "paid": False,
    }
    assert second["exception"].endswith("KeyError: 'x'") and "stack" in second
    (message, _) = sej.Journal(tmp_path / "log").tail(2)
    assert message.key == b"shop.orders" and b"\n" not in message.value


def test_extra_fields_replace_none_of_the_record(tmp_path: Path, log: logging.Logger) -> None:
    log.addHandler(JournalHandler(tmp_path / "log"))
    log.warning("rises", extra={"level": 3, "logger": "float"})
    (row,) = rows(tmp_path / "log")
    assert (row["level"], row["logger"], row["message"]) == ("WARNING", "shop.orders", "rises")
    assert (row["level_"], row["logger_"]) == (3, "float")


def test_a_record_of_another_process_keeps_its_exception(tmp_path: Path) -> None:
    handler = JournalHandler(tmp_path / "log")
    try:
        raise KeyError("x")
    except KeyError:
        sent = record("it failed", exc_info=sys.exc_info())
    received = pickle.loads(logging.handlers.SocketHandler("localhost", 0).makePickle(sent)[4:])
    handler.handle(logging.makeLogRecord(received))
    handler.close()
    (row,) = rows(tmp_path / "log")
    assert row["exception"].endswith("KeyError: 'x'")


def test_a_formatter_and_a_dict_config(tmp_path: Path, log: logging.Logger) -> None:
    logging.config.dictConfig({
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"short": {"format": "%(levelname)s %(message)s"}},
        "handlers": {"journal": {"class": "sej.contrib.logging.JournalHandler", "path": str(tmp_path / "log"),
                                 "formatter": "short", "level": "INFO"}},
        "loggers": {"shop.orders": {"handlers": ["journal"], "level": "DEBUG"}},
    })  # fmt: skip
    log.debug("not this")
    log.info("this")
    (message,) = sej.Journal(tmp_path / "log").tail(9)
    assert message.value == b"INFO this"


@pytest.mark.parametrize(("text", "value", "error"), [("%d", "text", "TypeError"), ("%s", Broken(), "RuntimeError")])
def test_a_record_that_cannot_be_formatted_is_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, value: object, error: str
) -> None:
    handler = JournalHandler(tmp_path / "log")
    handler.handle(record(text, value))
    handler.handle(record("next", odd=object()))
    assert handler.dropped == 1
    assert "1 log record could not be appended" in capsys.readouterr().err
    (good, report) = rows(tmp_path / "log")
    assert good["message"] == "next" and good["odd"].startswith("<object")
    assert report["logger"] == "sej.contrib.logging" and error in report["message"]
    handler.close()


def test_a_field_that_json_cannot_hold_becomes_a_text(tmp_path: Path) -> None:
    handler = JournalHandler(tmp_path / "log")
    fields = {"ratio": float("nan"), "pair": {(1, 2): 3}, "broken": Broken(), "number": 7}
    handler.handle(record("kept", **fields))
    (row,) = rows(tmp_path / "log")
    assert handler.dropped == 0
    assert {name: row[name] for name in ("message", *fields)} == {
        "message": "kept",
        "ratio": "nan",
        "pair": "{(1, 2): 3}",
        "broken": "<Broken>",
        "number": 7,
    }


def test_a_name_that_is_not_utf_8_leaves_json_that_every_reader_takes(tmp_path: Path) -> None:
    handler = JournalHandler(tmp_path / "log")
    handler.handle(record("cannot read %s", os.fsdecode(b"caf\xe9"), where="\ud83d\ude00"))
    (message,) = sej.Journal(tmp_path / "log").tail(1)
    assert b'"cannot read caf\\\\udce9"' in message.value  # two backslashes: JSON has no lone surrogate
    assert rows(tmp_path / "log")[0]["where"] == r"\ud83d\ude00"


def test_a_forked_child_counts_its_own_drops(tmp_path: Path, log: logging.Logger) -> None:
    handler = JournalHandler(tmp_path / "log")
    log.addHandler(handler)
    handler.handle(record("%d", "text"))

    def speak() -> None:
        assert handler.dropped == 0
        handler.handle(record("child"))

    child = multiprocessing.get_context("fork").Process(target=speak)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert [row["message"] for row in rows(tmp_path / "log")] == ["child"]
    assert handler.dropped == 1


def test_on_a_full_disk_records_are_dropped_and_counted_and_later_reported(
    tmp_path: Path, log: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sej.contrib.logging.time.monotonic", lambda: now[0])
    disk: Any = FullDisk()
    handler = JournalHandler(tmp_path / "log", disk=disk)
    log.addHandler(handler)
    disk.full = True
    for _ in range(5):
        log.info("lost")
    assert handler.dropped == 5
    assert len(capsys.readouterr().err.splitlines()) == 1
    disk.full = False
    log.info("still in the pause")
    now[0] += 61
    log.info("kept")
    kept, report = rows(tmp_path / "log")
    assert kept["message"] == "kept"
    assert "6 log records could not be appended" in report["message"] and "No space" in report["message"]
    log.info("and on")
    assert len(rows(tmp_path / "log")) == 3


def test_another_holder_of_the_journal_does_not_stop_the_program(tmp_path: Path, log: logging.Logger) -> None:
    handler = JournalHandler(tmp_path / "log", lock_timeout=0.0)
    log.addHandler(handler)
    log.info("before")
    with sej.Writer(tmp_path / "log"):
        log.info("meanwhile")
    assert handler.dropped == 1


def test_a_record_within_a_record_is_dropped(tmp_path: Path, log: logging.Logger) -> None:
    handler = JournalHandler(tmp_path / "log")
    log.addHandler(handler)

    class Talks:
        def __str__(self) -> str:
            handler.handle(record("inside"))
            return "talked"

    handler.handle(record("it %s", Talks()))
    assert handler.dropped == 1
    assert [row["message"] for row in rows(tmp_path / "log")][:1] == ["it talked"]


def test_threads_and_forked_children_share_one_journal(tmp_path: Path, log: logging.Logger) -> None:
    handler = JournalHandler(tmp_path / "log", lock_timeout=60.0)
    log.addHandler(handler)
    log.info("parent")

    def speak(who: int) -> None:
        for n in range(50):
            log.info("%d %d", who, n)

    threads = [threading.Thread(target=speak, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    children = [multiprocessing.get_context("fork").Process(target=speak, args=(who,)) for who in (3, 4)]
    for child in children:
        child.start()
    speak(5)
    for child in children:
        child.join()
        assert child.exitcode == 0
    found = [row["message"] for row in rows(tmp_path / "log")]
    assert handler.dropped == 0
    assert sorted(found) == sorted(["parent", *(f"{who} {n}" for who in range(6) for n in range(50))])


def test_a_child_logs_although_another_thread_logged_during_the_fork(tmp_path: Path) -> None:
    handler = JournalHandler(tmp_path / "log")
    begun, forked = threading.Event(), threading.Event()

    class Slow:
        def __str__(self) -> str:
            begun.set()
            forked.wait(60)
            return "slow"

    thread = threading.Thread(target=handler.handle, args=(record("%s", Slow()),))
    thread.start()
    assert begun.wait(60)
    child = multiprocessing.get_context("fork").Process(target=handler.handle, args=(record("child"),))
    child.start()
    child.join(60)
    forked.set()
    thread.join()
    handler.close()
    assert [row["message"] for row in rows(tmp_path / "log")] == ["child", "slow"]


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="durability must be one of"):
        JournalHandler(tmp_path, durability="buffer")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path must be"):
        JournalHandler(5)  # type: ignore[arg-type]
