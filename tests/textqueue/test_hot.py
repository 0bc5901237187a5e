"""The compiled hot paths do what the reference does, for any bytes."""

import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sej.system.disk import OS
from sej.system.locks import lease
from tests.house.house import has_compiler
from textqueue import hot
from textqueue.format.parser import chunks, digest, essence
from textqueue.format.windows import token_of
from textqueue.hot import reference as _hot_py

PIECES = [
    b"-", b"=", b"!", b"#", b" ", b"\\", b"\n", b"\n\\", b"\n ", b"\r\n", b"a", b"mutex", b"MUTEX = x", b"\tretries=1",
    b"reason", b"reasons=", b"\xff", b"T",
]  # fmt: skip
ANY = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join) | st.binary(max_size=100)
RAW = ANY.map(lambda data: next((raw for raw in chunks(b"-" + data)), b"-"))


def kinds() -> Iterator[Any]:
    yield pytest.param(_hot_py, id="reference")
    if hot.IMPLEMENTATION == "c":
        from textqueue.hot import _hot_c  # type: ignore[attr-defined]

        yield pytest.param(_hot_c, id="compiled")


BOTH = pytest.mark.parametrize("kind", list(kinds()))


class Reader:
    """A reader that is stale at the n-th check."""

    def __init__(self, stale_at: int) -> None:
        self.told: list[int] = []
        self.asked: list[int] = []
        self.stale_at = stale_at

    def at(self, position: int) -> None:
        self.told.append(position)

    def stale(self, position: int) -> bool:
        self.asked.append(position)
        return len(self.asked) == self.stale_at


def test_this_environment_has_the_compiled_twin_if_it_supports_it(tmp_path: Path) -> None:
    import os

    if not os.environ.get("SEJ_CODEC"):
        assert ("c" if has_compiler(tmp_path) else "python") == hot.IMPLEMENTATION


@BOTH
@given(data=ANY, controls=st.sets(st.sampled_from(list(b"-=!#T \n"))), stale_at=st.integers(0, 5))
def test_a_window_yields_the_wanted_messages(kind: Any, data: bytes, controls: set[int], stale_at: int) -> None:
    expected, position = [], 100
    for raw in chunks(data):
        if raw[0] in controls:
            expected.append((raw, position))
        position += len(raw)
    reader = Reader(stale_at)
    remembered: list[bytes] = []
    found = list(kind.ready(kind.Core, reader, "source", (100, data, 7), frozenset(controls), remembered))
    if stale_at and len(expected) >= stale_at:
        expected = expected[:stale_at]
        position = expected[-1][1] + len(expected[-1][0])
    assert [(core.raw, core.position) for core in found] == expected
    assert all(core.source == "source" and core.epoch == 7 for core in found)
    assert remembered == [raw for raw, _ in expected]
    assert reader.told == [position]
    assert reader.asked == [at + 1 for _, at in expected], "in a short window after each"


@BOTH
def test_the_file_is_checked_again_after_a_while(kind: Any) -> None:
    data = b"-x\n" * 3000
    while True:
        reader, start = Reader(stale_at=0), time.monotonic()
        messages = kind.ready(kind.Core, reader, None, (0, data, 1), b"-", None)
        for _ in range(2000):
            next(messages)
        if time.monotonic() < start + _hot_py.FRESH_S:  # else this process was interrupted for longer
            break
    few = len(reader.asked)
    assert few == 683, "the messages that begin in the first 2048 bytes"
    end = time.monotonic() + _hot_py.FRESH_S
    while time.monotonic() <= end:
        pass
    next(messages)
    assert reader.asked[few:] == [1999 * 3 + 1]


@BOTH
def test_an_error_of_the_reader_is_raised(kind: Any) -> None:
    class Broken(Reader):
        def stale(self, position: int) -> bool:
            raise OSError(5, "no")

    messages = kind.ready(kind.Core, Broken(0), None, (0, b"-a\n-b\n", 1), b"-", None)
    next(messages)
    with pytest.raises(OSError, match="no"):
        next(messages)


@BOTH
@given(
    raws=st.lists(RAW, max_size=5),
    tail=st.sampled_from([b" 1 2 3 -", b" 18446744073709551615 0 1700000000000000000 -"]),
)
def test_lines_of_the_ledger(kind: Any, raws: list[bytes], tail: bytes) -> None:
    from textqueue.format.parser import digest
    from textqueue.ledger.records import records_in

    places = [(number * 1_000_003, raw, 0) for number, raw in enumerate(raws)]
    lines = kind.status_lines(ord("="), places, tail)
    found = list(records_in(lines))
    assert lines.count(b"\n") == len(found) == len(raws)
    for record, (position, raw, _) in zip(found, places, strict=True):
        assert (record.kind, record.position, record.digest) == (ord("="), position, digest(essence(raw)))
    assert lines == _hot_py.status_lines(ord("="), places, tail)


NUMBERS = st.sampled_from(
    [b"0", b"-0", b"7", b"07", b"-7", b"9" * 19, b"-" + b"9" * 19, b"1" + b"0" * 19, b"", b"-", b"--1"]
)


@BOTH
@given(
    edits=st.lists(
        st.tuples(
            st.sampled_from(b"=!#-avmcex"),
            NUMBERS,
            st.sampled_from([b" aa 1 2 3 -", b" aa 1 2 3", b" aa 1 2 3 4 5", b""]),
            st.sampled_from([b" %08x", b" %08X", b"%08x", b" %08x0", b" 00000000"]),
            st.integers(0, 40),
        ),
        max_size=12,
    ),
    claimed=st.sets(st.sampled_from([0, 7, -7])),
)
def test_lines_of_the_ledger_that_matter(
    kind: Any, edits: list[tuple[int, bytes, bytes, bytes, int]], claimed: set[int]
) -> None:
    lines = b""
    for control, number, rest, crc, cut in edits:
        text = b"%c %s%s" % (control, number, rest)
        lines += ((text + crc % zlib.crc32(text)) if b"%" in crc else text + crc)[: cut or None] + b"\n"
    for part in (lines, lines[:-1], lines + b"= 7 "):
        assert kind.newest(part, claimed) == _hot_py.newest(part, claimed)


@BOTH
def test_bytes_that_are_no_message(kind: Any) -> None:
    assert not kind.proven(b"", 0, [(0, b"", 0)])
    assert not kind.proven(b"-a\n", 0, [(40, b"", 0)])
    assert not kind.proven(b"-a\n", 7, [(7, b"-a\n", 0)]), "the byte before is not known"
    assert kind.variable_at(b"-a\n\\v=1\n\n\r\n", 1) == _hot_py.variable_at(b"-a\n\\v=1\n\n\r\n", 1) == (9, 0)
    assert kind.variable_at(b"-a\n\\v=1\n\n\r\n", 2) == _hot_py.variable_at(b"-a\n\\v=1\n\n\r\n", 2)


@BOTH
@given(data=ANY, extra=st.integers(0, 2), moves=st.lists(st.integers(-1, 1), max_size=4), swap=st.booleans())
def test_proof_of_many(kind: Any, data: bytes, extra: int, moves: list[int], swap: bool) -> None:
    places, position = [], 0
    for raw in chunks(data):
        places.append((position, raw, 0))
        position += len(raw)
    del places[extra::3]
    honest = bool(places)
    for number, move in enumerate(moves[: len(places)]):
        if move:
            honest = False
        at, raw, epoch = places[number]
        places[number] = (max(at + move, 0), raw, epoch)
    if swap and len(places) > 1:
        places[0], places[1] = places[1], places[0]
        honest = False
    start = max(min((place[0] for place in places), default=0) - 1, 0)
    verdict = kind.proven(data[start:], start, places)
    assert verdict == _hot_py.proven(data[start:], start, places)
    if honest and all(raw[0] in b"-=!#" for _, raw, _ in places):
        assert verdict


@BOTH
@given(data=ANY, which=st.integers(0, 10), change=st.integers(0, 6), control=st.sampled_from(list(b"=!#")))
def test_a_mark_in_a_held_file_is_proven(kind: Any, data: bytes, which: int, change: int, control: int) -> None:
    messages, position = [], 0
    for raw in chunks(data):
        messages.append((raw, position))
        position += len(raw)
    if not messages:
        return
    raw, position = messages[which % len(messages)]
    position += {1: 1, 2: -1}.get(change, 0)
    if position < 0:
        return
    after = {3: data + b"\\v", 4: data + b" more", 5: data[:-1], 6: b"\n" + data}.get(change, data)
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "jobs.tq", Path(folder) / "log"
        path.write_bytes(after)
        file, ledger = OS.open(path, "edit"), OS.open(log, "append")
        assert lease(file)
        status = file.status()
        tail = b" %d %d %d -" % token_of(status)
        held = kind.Held(OS, file, ledger, identity=status.identity, tail=tail, until=time.monotonic() + 60)
        core = kind.Core(None, raw, position, 1)
        done = held.mark(core, control)
        file.close()
        stands = (
            raw[0] == ord("-")
            and after[position : position + len(raw)] == raw
            and (position == 0 or after[position - 1 : position] == b"\n")
            and _hot_py.ends(raw, after[position + len(raw) :][:1])
        )
        assert done == (hot.DONE if stands else hot.NOT_DONE)
        if stands:
            new = bytes([control]) + raw[1:]
            assert path.read_bytes() == after[:position] + new + after[position + len(raw) :]
            assert log.read_bytes() == _hot_py.status_lines(control, [(position, raw, 0)], tail)
            assert (core.raw, held.last, held.marks, held.high) == (new, (position, new), 1, position)
            assert held.log_bytes == len(log.read_bytes())
        else:
            assert path.read_bytes() == after
            assert log.read_bytes() == b""
        ledger.close()


@BOTH
@given(data=ANY, which=st.integers(0, 10), index=st.integers(-1, 3), text=st.binary(max_size=12), last=st.booleans())
def test_a_variable_in_a_held_file_is_proven(
    kind: Any, data: bytes, which: int, index: int, text: bytes, last: bool
) -> None:
    messages, position = [], 0
    for raw in chunks(data):
        found = kind.variable_at(raw, index)
        assert found == _hot_py.variable_at(raw, index)
        if found is not None:
            messages.append((raw, position, *found))
        position += len(raw)
    if not messages:
        return
    raw, position, relative, size = messages[which % len(messages)]
    new = text.replace(b"\n", b"")[:size].ljust(size)
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "jobs.tq", Path(folder) / "log"
        path.write_bytes(data if last else data[:position] + b"x" + data[position:])
        file, ledger = OS.open(path, "edit"), OS.open(log, "append")
        assert lease(file)
        status = file.status()
        tail = b" %d %d %d -" % token_of(status)
        held = kind.Held(OS, file, ledger, identity=status.identity, tail=tail, until=time.monotonic() + 60)
        core = kind.Core(None, raw, position, 1)
        done = held.variable(core, relative, new)
        file.close()
        later = log.read_bytes()
        held.flush()
        after = raw[:relative] + new + raw[relative + size :]
        if last:
            assert done == hot.DONE
            assert path.read_bytes() == data[:position] + after + data[position + len(raw) :]
            was, name = essence(raw), essence(after)
            owner = b"-" if was == name else digest(was)
            line = _hot_py.status_lines(ord("v"), [(position, after, 0)], tail[:-1] + owner)
            assert log.read_bytes() == line
            assert later == (b"" if was == name else line)
            assert (core.raw, held.last, held.lines, held.marks) == (after, (position, after), 1, 0)
            assert (held.shown, held.kind, held.log_bytes, held.high) == (None, ord("v"), len(line), position)
        else:
            assert done == hot.NOT_DONE
            assert log.read_bytes() == b""
        ledger.close()


@pytest.fixture
def held_file(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n-b\n-c\n")
    return path


def hold(kind: Any, path: Path, seconds: float = 60) -> Any:
    file, log = OS.open(path, "edit"), OS.open(path.with_name("log"), "append")
    assert lease(file)
    return kind.Held(OS, file, log, identity=file.status().identity, tail=b" 1 2 3 -", until=time.monotonic() + seconds)


@BOTH
def test_no_mark_when_the_time_is_over(kind: Any, held_file: Path) -> None:
    assert hold(kind, held_file, -1).mark(kind.Core(None, b"-a\n", 0, 1), ord("=")) == hot.NOT_DONE
    assert held_file.read_bytes() == b"-a\n-b\n-c\n"


@BOTH
def test_a_mark_in_a_file_that_was_replaced_does_not_count(kind: Any, held_file: Path) -> None:
    held = hold(kind, held_file)
    new = held_file.with_name("new")
    new.write_bytes(b"-a\n")
    new.replace(held_file)
    core = kind.Core(None, b"-a\n", 0, 1)
    assert held.mark(core, ord("=")) == hot.GONE
    assert core.raw == b"-a\n"
    assert held_file.read_bytes() == b"-a\n"
    held_file.unlink()
    assert held.mark(kind.Core(None, b"-b\n", 3, 1), ord("=")) == hot.GONE
    assert held_file.with_name("log").read_bytes() == b""


@BOTH
def test_no_mark_without_a_lease(kind: Any, held_file: Path) -> None:
    file, log = OS.open(held_file, "edit"), OS.open(held_file.with_name("log"), "append")
    held = kind.Held(OS, file, log, identity=file.status().identity, tail=b" 1 2 3 -", until=time.monotonic() + 60)
    assert held.mark(kind.Core(None, b"-a\n", 0, 1), ord("=")) == hot.NOT_DONE
    assert held.disturbed
    assert held_file.read_bytes() == b"-a\n-b\n-c\n"


@BOTH
def test_a_variable_is_refused_as_a_mark_is(kind: Any, held_file: Path) -> None:
    held_file.write_bytes(b"-a\n\\v=1\n")
    core = kind.Core(None, held_file.read_bytes(), 0, 1)
    assert hold(kind, held_file, -1).variable(core, 4, b"v=2") == hot.NOT_DONE
    file, log = OS.open(held_file, "edit"), OS.open(held_file.with_name("log"), "append")
    held = kind.Held(OS, file, log, identity=file.status().identity, tail=b" 1 2 3 -", until=time.monotonic() + 60)
    assert held.variable(core, 4, b"v=2") == hot.NOT_DONE
    assert held.disturbed
    for relative in (0, 5, sys.maxsize):
        with pytest.raises(ValueError, match="within the message"):
            held.variable(core, relative, b"v=22")
    assert held_file.read_bytes() == core.raw


@BOTH
def test_an_error_of_the_system_is_raised(kind: Any, held_file: Path) -> None:
    file, log = OS.open(held_file, "edit"), OS.open(held_file.with_name("log"), "append")
    identity = file.status().identity
    assert lease(file)
    log.close()
    held = kind.Held(OS, file, log, identity=identity, tail=b" 1 2 3 -", until=time.monotonic() + 60)
    with pytest.raises(OSError):
        held.mark(kind.Core(None, b"-a\n", 0, 1), ord("="))


@BOTH
@given(
    sizes=st.lists(st.sampled_from([1, 9, 200, 2000, 4090, 4095, 5000]), min_size=2, max_size=8),
    edits=st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from([b"=", b"!", b"v", b"v", b"v"])), min_size=2, max_size=20
    ),
    name=st.sampled_from([b"v", b"retries", b" Reason "]),
    again=st.sampled_from([1, 8]),
)
def test_edits_of_one_hold(
    kind: Any, sizes: list[int], edits: list[tuple[int, bytes]], name: bytes, again: int
) -> None:
    """The compiled one reads a block, and proves several messages from it. Both leave the same lines for later."""
    raws = [b"-" + b"x" * size + b"\n\\" + name + b"=1 \n" for size in sizes]
    found = []
    for each in (_hot_py, kind):
        with tempfile.TemporaryDirectory() as folder:
            path, log = Path(folder) / "jobs.tq", Path(folder) / "log"
            path.write_bytes(b"".join(raws))
            file, ledger = OS.open(path, "edit"), OS.open(log, "append")
            assert lease(file)
            identity = file.status().identity
            held = each.Held(OS, file, ledger, identity=identity, tail=b" 1 2 3 -", until=time.monotonic() + 60)
            cores, position = [], 0
            for raw in raws:
                cores.append(each.Core(None, raw, position, 1))
                position += len(raw)
            results = []
            for number, (which, edit) in enumerate(edits * again):
                core = cores[which % len(cores)]
                size = len(raws[which % len(cores)])
                if edit == b"v":
                    results.append(held.variable(core, size - 3, b"%d" % (number % 10)))
                else:
                    results.append(held.mark(core, edit[0]))
                results.append(log.stat().st_size)
                results.append((held.lines, held.log_bytes, held.lost))
            held.flush()
            file.close()
            ledger.close()
            found.append((results, path.read_bytes(), log.read_bytes(), [core.raw for core in cores]))
    assert found[0] == found[1]
