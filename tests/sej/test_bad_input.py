"""Bad input gets a clear error that names it, and changes nothing."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import (
    ClosedError,
    InvalidMessageError,
    InvalidNameError,
    JournalNotFoundError,
    NotAJournalError,
    SejError,
)
from tests.sej.support import CALLS, read_all, segments, write

OPENERS: dict[str, Callable[[Path], Any]] = {
    "Scanner": sej.Scanner,
    "Journal": sej.Journal,
    "Offset": lambda path: sej.Offset(path, "reader"),
    "read_offset": lambda path: sej.read_offset(path, "reader"),
}
DURABILITIES: list[Any] = ["buffer", "os", "interval", "disk"]


PATHS: list[tuple[str, type[Exception] | tuple[type[Exception], ...], str]] = [
    ("file", NotAJournalError, "is a file"),
    ("file/below", (NotAJournalError, NotADirectoryError, sej.FileTypeError), "file"),
    ("other", NotAJournalError, "no jnl/"),
    ("missing", JournalNotFoundError, "missing"),
    ("empty", JournalNotFoundError, "empty"),  # a writer that was killed, or has just begun, leaves one
    ("begun", JournalNotFoundError, "empty"),  # or this
]


@pytest.mark.parametrize(("given", "error", "says"), PATHS, ids=[given for given, _, _ in PATHS])
@pytest.mark.parametrize("opener", [*OPENERS, "Writer"])
def test_a_path_that_is_no_journal_is_named_and_left_alone(
    opener: str, given: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    if opener == "Writer" and not given.startswith("file"):
        return  # it creates a journal, or leaves it to tests/house/test_arguments.py
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun" / "ofs").mkdir(parents=True)
    (tmp_path / "other" / "src").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=says) as raised:
        OPENERS.get(opener, sej.Writer)(tmp_path / given)
    assert given == "file/below" or getattr(raised.value, "path", None) == str(tmp_path / given)
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("opener", OPENERS)
@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ("data/orders.2.001/jnl", NotAJournalError, "; it belongs to ROOT/data/orders.2.001"),
        ("data/orders.2.001/jnl/0000000000000000.jnl", NotAJournalError, "; it belongs to ROOT/data/orders.2.001"),
        ("data", NotAJournalError, ", but holds some: pass one of them, as in ROOT/data/orders.2.001"),
        (
            "data/orders.2",
            JournalNotFoundError,
            "pass one of its shards, as in 'orders.2.001'",
        ),
    ],
)
def test_a_path_near_a_journal_names_it(
    opener: str, given: str, error: type[SejError], says: str, tmp_path: Path
) -> None:
    sej.Writer(tmp_path / "data" / "orders.2.001").close()
    with pytest.raises(error) as raised:
        OPENERS[opener](tmp_path / given)
    assert says.replace("ROOT", str(tmp_path)) in str(raised.value)


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"key": b"k" * 128}, InvalidMessageError, "128"),
        ({"key": b"k" * 300}, InvalidMessageError, "300"),
        ({"type": 256}, InvalidMessageError, "256"),
        ({"type": -1}, InvalidMessageError, "-1"),
        ({"timestamp": 2**63}, InvalidMessageError, str(2**63)),
        ({"value": None}, InvalidMessageError, str(2**31 - 1)),
        ({"value": "text"}, TypeError, "value must be bytes, got str"),
        ({"key": "text"}, TypeError, "key must be bytes, got str"),
        ({"value": 7}, TypeError, "value must be bytes, got int"),
        ({"type": "a"}, TypeError, "type must be an int"),
        ({"timestamp": 1.5}, TypeError, "timestamp must be an int"),
    ],
    ids=lambda found: "-".join(f"{name}={row}"[:30] for name, row in found.items()) if isinstance(found, dict) else "",
)
def test_a_bad_message_is_refused_and_the_writer_continues(
    durability: Any, fields: dict[str, Any], error: type[Exception], named: str, tmp_path: Path
) -> None:
    row: dict[str, Any] = {"value": b"v", "key": b"k", "type": 0, "timestamp": 0, **fields}
    if row["value"] is None:  # not among the parameters: a report that prints it would take minutes
        row["value"] = bytes(2**31 - 27)
    with sej.Writer(tmp_path, durability=durability) as w:
        w.append(b"before")
        w.flush()
        before = segments(tmp_path)
        with pytest.raises(error, match=named):
            w.append(**row)
        for method in (w.append_many, lambda *rows: w.append_once("name", 1, *rows)):
            with pytest.raises(error, match=named):
                method(
                    *([good, row[name]] for name, good in (("value", b""), ("key", b""), ("type", 0), ("timestamp", 0)))
                )
        w.flush()
        assert segments(tmp_path) == before
        assert w.append(b"after") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (([b"a", b"b"], [b"k"]), "keys"),
        (([b"a", b"b"], None, [1]), "type"),
        (([b"a", b"b"], None, 0, [1, 2, 3]), "timestamp"),
    ],
)
def test_columns_of_different_length_are_named(arguments: Any, named: str, tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        with pytest.raises(ValueError, match=named):
            w.append_many(*arguments)
        assert w.append(b"first") == 0


def test_a_str_instead_of_values_is_not_split_into_characters(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        with pytest.raises(TypeError, match="bytes"):
            w.append_many("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            w.append_many(b"bytes")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"messages must be an iterable of sej\.Message, got 'text'"):
            w.append_messages("text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"each message must be a sej\.Message, got b'value'"):
            w.append_messages([b"value"])  # type: ignore[list-item]
        assert w.offset == 0


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("call", CALLS)
def test_a_closed_writer_says_so(call: str, durability: Any, tmp_path: Path) -> None:
    w = sej.Writer(tmp_path, durability=durability)
    w.append(b"v")
    w.close()
    w.close()
    before = segments(tmp_path)
    with pytest.raises(ClosedError, match="closed") as raised:
        CALLS[call](w)
    assert raised.value.path == str(tmp_path)
    assert segments(tmp_path) == before
    assert w.closed and w.offset == w.durable_offset == 1


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append(b"v")
    s, o = sej.Scanner(tmp_path), sej.Offset(tmp_path, "reader")
    for _ in range(2):
        s.close()
        o.close()
    calls: list[Callable[[], object]] = [s.read, lambda: next(iter(s)), lambda: s.seek(0), lambda: s.seek_time(0)]
    calls += [lambda: o.commit(1), lambda: o.reset(1)]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    assert sej.read_offset(tmp_path, "reader") is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/abs", ".hidden", "a\0b", "a\n", "é", "a b", "x" * 201]
)
def test_names_cannot_leave_their_directory(name: str, tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j") as w:
        for call in (
            lambda: sej.Offset(tmp_path / "j", name),
            lambda: sej.read_offset(tmp_path / "j", name),
            lambda: w.append_once(name, 1, [b"v"]),
        ):
            with pytest.raises(InvalidNameError):
                call()
        assert w.offset == 0
    assert [each.name for each in tmp_path.iterdir()] == ["j"]


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "always"},
        {"segment_bytes": 0},
        {"segment_bytes": -1},
        {"first_offset": -1},
        {"first_offset": 2**63},
        *({"durability": "interval", "sync_interval_s": wrong} for wrong in (0, -1, math.nan, math.inf)),
    ],
    ids=str,
)
def test_bad_options_are_named_and_leave_no_lock(options: dict[str, Any], tmp_path: Path) -> None:
    name = "durability" if options == {"durability": "always"} else list(options)[-1]
    with pytest.raises(ValueError, match=name):
        sej.Writer(tmp_path, **options)
    sej.Writer(tmp_path).close()


@pytest.mark.parametrize(
    "options",
    [
        {"allow_network_fs": 0},
        {"allow_network_fs": None},
        {"first_offset": False},
        {"first_offset": 0.0},
        {"lock_timeout": False},
        {"retention": False},
        {"segment_bytes": float(1 << 30)},
        {"sync_interval_s": True},
    ],
    ids=str,
)
def test_what_only_equals_a_default_is_checked(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=next(iter(options))):
        sej.Writer(tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"offset": -1}, ValueError),
        ({"offset": 2**63}, ValueError),
        ({"offset": "0"}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"on_corruption": "ignore"}, ValueError),
    ],
)
def test_bad_scanner_options_are_refused(options: dict[str, Any], error: type[Exception], tmp_path: Path) -> None:
    sej.Writer(tmp_path).close()
    with pytest.raises(error, match=next(iter(options))):
        sej.Scanner(tmp_path, **options)


@pytest.mark.parametrize(
    "use",
    [
        lambda path: sej.Writer(path).close(),
        lambda path: sej.open_queue(path, "q").close(),
        lambda path: sej.Offset(path, "r").close(),
        lambda path: sej.Journal(path).clean(max_bytes=1),
        lambda path: sej.Journal(path).repair(),
    ],
)
def test_a_copy_without_an_empty_directory_is_used(use: Callable[[Path], object], tmp_path: Path) -> None:
    """Git keeps no empty ``ofs/``."""
    write(tmp_path, [b"a"])
    (tmp_path / "ofs").rmdir()
    use(tmp_path)
    assert len(read_all(tmp_path)) == 1


def test_every_error_is_one_of_ours_and_carries_coordinates() -> None:
    import pickle

    for name in dir(sej):
        kind = getattr(sej, name)
        if isinstance(kind, type) and issubclass(kind, Exception):
            assert issubclass(kind, SejError)
    error = sej.CorruptionError("wrong", path="p", position=3, offset=4)
    assert str(error) == "p, position 3, offset 4: wrong"
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.position) == (sej.CorruptionError, str(error), 3)
