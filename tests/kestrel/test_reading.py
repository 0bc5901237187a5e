"""Reading one journal file: the codec's three outcomes, both meanings of opcode 8, bounds."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kestrel
import sej
from kestrel.errors import BadNameError, MissingError
from kestrel.v2 import format
from kestrel.v2.format import PLAIN, Operation, decode
from kestrel.v2.journal import Dialect
from tests.kestrel.support import outcome
from tests.sej.hooks import bounded

TIMES = st.integers(0, 2**63 - 1)
XIDS = st.integers(-(2**31), 2**31 - 1)
WRITTEN = st.one_of(
    st.builds(format.addx, st.binary(max_size=60), TIMES, TIMES),
    st.builds(format.continue_, XIDS, st.binary(max_size=60), TIMES, TIMES),
    st.builds(
        format.xid_operation,
        st.sampled_from([format.UNREMOVE, format.CONFIRM_REMOVE, format.REMOVE_TENTATIVE_XID]),
        XIDS,
    ),
    st.just(b"\x01"),
)


def read(path: Path, data: bytes, dialect: Dialect = "auto") -> tuple[list[Operation], kestrel.KestrelError | None]:
    path.write_bytes(data)
    return outcome(kestrel.read_journal(path, dialect=dialect))


@given(st.lists(WRITTEN, max_size=8))
def test_what_is_written_is_read(parts: list[bytes]) -> None:
    data = b"".join(parts)
    at = 0
    for part in parts:
        operation, size = decode(data, at, 100 + at)
        assert operation is not None
        assert (operation.position, operation.size, size) == (100 + at, len(part), len(part))
        some, used = PLAIN.decode(data, 100, at)
        assert some[:1] == ([operation] if operation.opcode != format.CONTINUE else [])
        assert used >= at + sum(one.size for one in some)
        at += len(part)
    assert at == len(data)


@given(WRITTEN)
def test_every_shorter_one_needs_more(data: bytes) -> None:
    for size in range(len(data)):
        operation, whole = decode(data[:size])
        assert operation is None
        assert whole in (None, len(data))
        assert PLAIN.decode(data[:size]) == ([], 0)


@given(st.binary(max_size=200))
def test_anything_is_read_or_refused(data: bytes) -> None:
    found, used = PLAIN.decode(data)
    assert sum(operation.size for operation in found) == used <= len(data)
    with contextlib.suppress(kestrel.DamageError):
        decode(data, used)


def test_a_block_boundary_anywhere_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = format.addx(b"x" * 9, 1) + format.continue_(5, b"y" * 30, 2) + b"\x01" + format.xid_operation(6, 5) * 3
    expected, _ = read(tmp_path / "j", data)
    assert len(expected) == 6
    for block in range(1, 40):
        monkeypatch.setattr("kestrel.reading._BLOCK", block)
        for cut in (0, 1, 7, 20):
            found, error = read(tmp_path / "j", data[: len(data) - cut])
            assert found == expected[: len(found)]
            assert (error is None) == (sum(op.size for op in found) == len(data) - cut)


def test_opcode_8_can_be_forced(tmp_path: Path) -> None:
    dump = b"\x08" + (4).to_bytes(4, "little") + (0).to_bytes(4, "little")
    assert [op.name for op in read(tmp_path / "j", dump)[0]] == ["STATE_DUMP"]
    found, error = read(tmp_path / "j", dump, "2.4")
    assert found == []
    assert error is not None
    assert error.position == 0
    added = format.continue_(7, b"item", 1475195912693)
    assert [op.name for op in read(tmp_path / "j", added)[0]] == ["CONTINUE"]
    assert [op.name for op in read(tmp_path / "j", added, "classic")[0]][:1] == ["STATE_DUMP"]


def test_a_continue_that_begins_like_a_dump_is_a_continue(tmp_path: Path) -> None:
    # Its add time begins with the byte 7, the opcode of ADD_XID.
    added = format.continue_(7, b"item", 1475195912693 & ~0xFF | 7)
    assert [op.name for op in read(tmp_path / "j", added + added)[0]] == ["CONTINUE", "CONTINUE"]


def test_unknown_dialects_files_and_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dialect must be one of 'auto', 'classic'"):
        list(kestrel.read_journal(tmp_path / "j", dialect="3"))  # type: ignore[arg-type]
    with pytest.raises(MissingError):
        list(kestrel.read_journal(tmp_path / "j"))
    with pytest.raises(MissingError):
        kestrel.replay(tmp_path / "none", "cars")
    for name in ("", "a.b", "a/b", "a~b", "..", "a\0"):
        with pytest.raises(BadNameError):
            kestrel.replay(tmp_path, name)


LIKE_A_DUMP = 1475195912693 & ~0xFF | 7
"""An add time with which a CONTINUE looks like a state dump at first, so that each is looked at by itself."""


@pytest.mark.parametrize(
    "record",
    [format.addx(b"v" * 1000, 1), *(format.continue_(7, b"v" * 1000, LIKE_A_DUMP + n) for n in (0, 1))],
    ids=["addx", "like a dump", "continue"],
)
def test_a_long_journal_is_read_in_bounded_memory(record: bytes, tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(record * 6_000)
    with bounded(4 << 20):
        assert sum(1 for _ in kestrel.read_journal(tmp_path / "j")) == 6_000


def test_what_needs_a_queue_makes_none(tmp_path: Path) -> None:
    for directory in (tmp_path / "missing", tmp_path):
        with pytest.raises(kestrel.KestrelError, match=r"does not exist|no file of a queue"):
            kestrel.pack(directory, "cars")
        with sej.Writer(tmp_path.parent / f"{tmp_path.name}.out") as writer:
            with pytest.raises(kestrel.KestrelError, match=r"does not exist|no file of a queue"):
                kestrel.export(directory, "cars", writer)
            assert writer.offset == 0
    assert list(tmp_path.iterdir()) == []
