"""A handler of the standard library's :mod:`logging` that appends each record to a journal.

A program must not fail because its log cannot be written. So :meth:`JournalHandler.emit` never raises an ``Exception``.
If a record cannot be appended (the disk is full, another process holds the journal, an argument cannot be formatted),
it is dropped and counted. After a failed append, records are dropped without a try for one second. Then the journal is
opened again. The drops are reported once a minute on standard error, and in the journal as soon as it works again.

The states of the writer::

    none --emit--> open --fork--> none    (in the child: the writer belongs to the parent)
                    |  ^
            a failure  after _PAUSE_S, by the next emit
                    v  |
                   paused

:class:`logging.Handler` calls ``emit`` under its own lock, which is made again in a forked child. A record that is
logged while ``emit`` runs in the same thread, by this package or by a signal handler, is dropped: it could recurse.
A child that was forked while another thread ran ``emit`` logs as any other.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from typing import Final, Unpack

from sej.checks import require
from sej.journal.directory import Directory
from sej.system.disk import OS, Disk
from sej.writing.shared_writer import SharedOptions, SharedWriter, check_shared_options

__all__ = ["JournalHandler"]

_PAUSE_S: Final = 1.0
_REPORT_S: Final = 60.0
_LOCK_S: Final = 0.05
"""Other writers hold the journal for microseconds. One that holds it longer must not stop the program."""
_KEY_BYTES: Final = 127
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=str).encode
_LONE: Final = re.compile("[\ud800-\udfff]")


class JournalHandler(logging.Handler):
    r"""Appends each log record to a journal, as one line of JSON, or as its formatter formats it.

    The message's key is the logger's name, its timestamp the record's. Any number of processes may log to one journal.
    A field of ``extra`` with the name of one that each record has, as ``level``, is written as ``level_``.

    Example:
        >>> import logging, tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> log = logging.getLogger("shop")
        >>> handler = JournalHandler(path)
        >>> log.addHandler(handler)
        >>> log.warning("order %d is late", 17, extra={"customer": "alice"})
        >>> log.removeHandler(handler)
        >>> handler.close()
        >>> [message.value for message in sej.Journal(path).tail(1)]  # doctest: +ELLIPSIS
        [b'{"time": "...", "level": "WARNING", "logger": "shop", "message": "order 17 is late", "customer": "alice"}']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        level: int | str = logging.NOTSET,
        *,
        disk: Disk = OS,
        **writer: Unpack[SharedOptions],
    ) -> None:
        """Set the journal; it is opened, or created, by the first record.

        Args:
            path: the SEJ directory.
            level: records below this level are ignored.
            disk: the disk.
            writer: the options of :class:`sej.SharedWriter`, as in ``durability="os"``.
        """
        require(path=path)
        check_shared_options(disk=disk, **writer)
        super().__init__(level)
        self.path = Directory(path, OS).path
        self._dropped = 0
        self._dropped_by = os.getpid()
        self._disk = disk
        self._options: SharedOptions = {"lock_timeout": _LOCK_S, **writer}
        self._writer: SharedWriter | None = None
        self._pid = 0
        self._inside = 0  # the process that writes a record: another thread may fork meanwhile
        self._try_at = 0.0
        self._report_at = 0.0
        self._unreported = 0
        self._reason = ""
        self._second = (-1, "")

    @property
    def dropped(self) -> int:
        """How many records this process could not append; a forked child counts from 0."""
        return self._dropped if self._dropped_by == os.getpid() else 0

    def emit(self, record: logging.LogRecord) -> None:
        """Append a record; if that is not possible, count it as dropped."""
        pid = os.getpid()
        if self._inside == pid:
            self._drop("a record was logged while another one was written")
            return
        self._inside = pid
        try:
            try:
                value = self._value(record)
            except Exception as error:
                self._drop(f"{type(error).__name__}: {error}")
                return
            try:
                timestamp = int(record.created * 1e9)
                writer = self._writer if self._pid == pid else None
                if writer is None:
                    if time.monotonic() < self._try_at:
                        self._drop(self._reason)
                        return
                    writer = self._open()
                writer.append(value, record.name.encode("utf-8", "replace")[:_KEY_BYTES], timestamp=timestamp)
            except Exception as error:
                self._fail(error)
            else:
                if self._unreported and self._dropped_by == pid:
                    self._report(writer)
        finally:
            self._inside = 0

    def flush(self) -> None:
        """Do nothing: each record has reached the system when ``emit`` returns."""

    def close(self) -> None:
        """Close the journal; a later record opens it again."""
        assert self.lock is not None
        with self.lock:
            writer, self._writer = self._writer, None
            mine = self._pid == os.getpid()
        try:
            if writer is not None and mine:
                writer.close()
        except Exception as error:
            self._fail(error)
        super().close()

    def _open(self) -> SharedWriter:
        self._writer = None
        self._pid = os.getpid()
        self._writer = writer = SharedWriter(self.path, disk=self._disk, **self._options)
        return writer

    def _value(self, record: logging.LogRecord) -> bytes:
        if self.formatter is not None:
            return self.format(record).encode("utf-8", "backslashreplace")
        second = int(record.created)
        if self._second[0] != second:
            self._second = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        fraction = int((record.created - second) * 1e6)
        row: dict[str, object] = {
            "time": f"{self._second[1]}.{fraction:06d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if len(record.__dict__) > _FIELDS:
            extra = {key: value for key, value in record.__dict__.items() if key not in _STANDARD}
            row.update((f"{key}_" if key in row else key, value) for key, value in extra.items())
        if record.exc_info:
            row["exception"] = logging.Formatter().formatException(record.exc_info)
        elif record.exc_text:  # a SocketHandler sent it from another process
            row["exception"] = record.exc_text
        if record.stack_info:
            row["stack"] = record.stack_info
        return _line(row)

    def _fail(self, error: Exception) -> None:
        """Count a drop; after an error of the journal, close it and pause."""
        self._drop(f"{type(error).__name__}: {error}")
        if isinstance(error, TypeError | ValueError | KeyError | AttributeError):
            return  # of this record, not of the journal
        self._try_at = time.monotonic() + _PAUSE_S
        writer, self._writer = self._writer, None
        if writer is not None and self._pid == os.getpid():
            try:
                writer.close()
            except Exception as closing:
                self._reason = f"{self._reason}; {closing}"

    def _drop(self, reason: str) -> None:
        """Count a record that is not appended, and report that on standard error once a minute."""
        if self._dropped_by != (pid := os.getpid()):  # the parent reports what it dropped
            self._dropped_by, self._dropped, self._unreported = pid, 0, 0
        self._dropped += 1
        self._unreported += 1
        self._reason = reason
        now = time.monotonic()
        if now >= self._report_at and sys.stderr is not None:
            self._report_at = now + _REPORT_S
            try:
                sys.stderr.write(f"sej: {self._text()}\n")
            except Exception:  # nothing is left to report to
                return

    def _report(self, writer: SharedWriter) -> None:
        """Append the report of records that were dropped."""
        record = logging.makeLogRecord(
            {"name": __name__, "levelname": "WARNING", "levelno": logging.WARNING, "msg": self._text()}
        )
        try:
            writer.append(self._value(record), __name__.encode(), timestamp=int(record.created * 1e9))
            self._unreported = 0
        except Exception as error:
            self._fail(error)

    def _text(self) -> str:
        count = f"{self._unreported} log record{'s' if self._unreported > 1 else ''}"
        return f"{count} could not be appended to {self.path}: {self._reason}"


def _line(row: dict[str, object]) -> bytes:
    """Encode a record. What JSON cannot hold becomes a text: a program's own fields must not cost the record."""
    try:
        text = _encode(row)
    except Exception:
        text = _encode({str(key): _plain(value) for key, value in row.items()})
    try:
        return text.encode()
    except UnicodeEncodeError:  # as of a file's name that is not UTF-8; many readers of JSON refuse a lone \ud800
        return _LONE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


def _plain(value: object) -> object:
    """Return a value as it is, or its text, or the name of its type: the first that JSON can hold."""
    try:
        _encode(value)
    except Exception:
        try:
            return str(value)
        except Exception:
            return f"<{type(value).__name__}>"
    return value


_FIELDS: Final = len(vars(logging.makeLogRecord({})))
