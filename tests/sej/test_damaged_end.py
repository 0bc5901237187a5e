"""The end of a journal whose last segment is damaged: it is never reported as empty."""

from collections.abc import Callable
from pathlib import Path

import pytest

import sej
from tests.cli.inside import inside
from tests.sej.support import by_hand, encoded, overwrite, packed, read_all, sample, segment, values

FAR = (1 << 63).to_bytes(8, "big")


@pytest.fixture(params=["by hand", "indexed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Twenty messages in one segment."""
    by_hand(tmp_path, (0, packed(sample(20))))
    if request.param == "indexed":
        sej.Journal(tmp_path).reindex()
    return tmp_path


LOOKS: dict[str, Callable[[sej.Journal], object]] = {
    "end_offset": lambda j: j.end_offset,
    "tail": lambda j: j.tail(3),
    "reversed": lambda j: list(j.reversed()),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    "damage",
    [(0, FAR), (7, b"\x05"), (17, b"\x90"), (18, b"\xff" * 4), (0, bytes(40))],
    ids=["far", "near", "key size", "value size", "zeros"],
)
def test_a_damaged_first_message_is_not_an_empty_journal(look: str, damage: tuple[int, bytes], path: Path) -> None:
    overwrite(segment(path, 0), *damage)
    knows = (path / "idx").exists() and damage[0] > 16  # the index is believed: it confirms the first message's head
    if knows and look != "reversed":
        assert LOOKS[look](sej.Journal(path)) == (20 if look == "end_offset" else sample(3, start=17))
    else:
        with pytest.raises(sej.CorruptionError) as raised:
            LOOKS[look](sej.Journal(path))
        assert raised.value.path == str(segment(path, 0))
        assert knows or (raised.value.position, raised.value.offset) == (0, 0)
    sej.Journal(path).repair()
    assert sej.Journal(path).end_offset == 20
    assert values(sej.Journal(path).tail(3)) == values(sample(3, start=17))


def test_a_single_message_with_another_offset_is_not_an_empty_journal(tmp_path: Path) -> None:
    message = encoded(0, 5, 0, b"", b"value")
    for wrong in (5, 1 << 63):
        by_hand(tmp_path, (0, wrong.to_bytes(8, "big") + message[8:]))
        for look in LOOKS.values():
            with pytest.raises(sej.CorruptionError):
                look(sej.Journal(tmp_path))
        with pytest.raises(sej.CorruptionError), sej.Scanner(tmp_path, sej.LAST):
            pass


@pytest.mark.parametrize("command", ["count", "tail"])
def test_the_commands_say_so(command: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overwrite(segment(path, 0), 0, FAR)
    done = inside(monkeypatch, command, path)
    assert (done.code, done.out) == (1, b"")
    assert "position 0" in done.err


@pytest.mark.parametrize("command", ["doctor", "stat"])
def test_what_looks_at_the_whole_works_on_a_damaged_journal(
    command: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(segment(path, 0), 0, FAR)
    assert b"messages" in inside(monkeypatch, command, path).out


@pytest.mark.parametrize("timeout", [0, 0.01])
@pytest.mark.parametrize("trailer", [False, True], ids=["head", "head and trailer"])
def test_a_reader_does_not_end_before_messages_of_the_index(trailer: bool, timeout: float, tmp_path: Path) -> None:
    """A damaged length with more damage after it looks like a torn tail; the index shows that it is not one."""
    rows = [sej.Message(n, n, 0, b"", b"message %02d" % n) for n in range(20)]
    size = len(packed(rows[:1]))
    by_hand(tmp_path, (0, packed(rows)))
    sej.Journal(tmp_path).reindex()
    overwrite(segment(tmp_path, 0), 5 * size + 18, b"\x7f")
    overwrite(segment(tmp_path, 0), 18 * size + 18, b"\x7f")
    if trailer:
        overwrite(segment(tmp_path, 0), 6 * size - 1, b"\x01")
    assert sej.Journal(tmp_path).end_offset == 20, "a writer continues after message 19"
    (problem,) = sej.Journal(tmp_path).verify()
    assert (problem.kind, problem.position, problem.offset) == ("corruption", 5 * size, 5)
    with sej.Scanner(tmp_path, timeout=timeout) as scanner:
        assert scanner.read() == rows[:5]
        for _ in range(3):
            with pytest.raises(sej.CorruptionError, match="index has messages 5 to 19") as raised:
                scanner.read()
            assert (raised.value.position, raised.value.offset) == (5 * size, 5)
    with sej.Scanner(tmp_path, timeout=timeout, on_corruption="skip") as scanner:
        found = [message.offset for message in scanner]
        missing = {offset for gap in scanner.gaps for offset in range(gap.start, gap.stop)}
    assert found == [*range(5), *range(6, 18), 19], "the index shows that no later message is part of a torn one"
    assert missing == {5, 18}
    done = sej.Journal(tmp_path).repair()
    assert [gap[:2] for gap in done.gaps] == [(5, 6), (18, 19)]
    assert [message.offset for message in read_all(tmp_path)] == found
    with sej.Writer(tmp_path) as writer:
        assert writer.append(b"") == 20, "no offset of a lost message is used again"


@pytest.mark.parametrize("tail", [bytes(4096), bytes(17) + b"\x90" * 30], ids=["zeros", "key size"])
def test_a_time_is_found_before_a_torn_tail(tail: bytes, tmp_path: Path) -> None:
    rows = sample(3)
    by_hand(tmp_path, (0, packed(rows) + tail))
    journal = sej.Journal(tmp_path)
    assert [journal.find_time(row.timestamp) for row in rows] == [0, 1, 2]
    assert journal.find_time(rows[-1].timestamp + 1) == 3
    by_hand(tmp_path, (0, packed(rows) + tail + packed(sample(5, start=4))))
    with pytest.raises(sej.CorruptionError):
        journal.find_time(rows[-1].timestamp + 1)
    by_hand(tmp_path, (0, packed(rows) + tail), (4, packed(sample(1, start=4))))
    with pytest.raises(sej.CorruptionError):
        journal.find_time(rows[-1].timestamp + 1)


@pytest.mark.parametrize("last", [False, True], ids=["an earlier segment", "the last segment"])
def test_a_time_is_not_searched_after_an_incomplete_message(last: bool, tmp_path: Path) -> None:
    """A damaged length may hide the messages of the rest of the segment, and one of them may have the time."""
    rows = sample(20)
    by_hand(tmp_path, (0, packed(rows[:10])), *([] if last else [(10, packed(rows[10:]))]))
    sej.Journal(tmp_path).reindex()
    overwrite(segment(tmp_path, 0), len(packed(rows[:3])) + 18, b"\x7f")
    journal = sej.Journal(tmp_path)
    assert [journal.find_time(row.timestamp) for row in rows[:3]] == [0, 1, 2]
    for row in rows[3:10]:
        with pytest.raises(sej.CorruptionError) as raised:
            journal.find_time(row.timestamp)
        assert (raised.value.position, raised.value.offset) == (len(packed(rows[:3])), 3)
    journal.repair()
    assert [journal.find_time(row.timestamp) for row in rows[4:10]] == list(range(4, 10))
