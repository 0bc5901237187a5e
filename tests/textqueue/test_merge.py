"""Merging a person's edit with what programs wrote meanwhile."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sej.system.clock import SYSTEM
from sej.system.disk import OS
from tests.textqueue.claiming import got, lined, plain, taken
from textqueue import TextQueue
from textqueue.commands.moving import merge, save
from textqueue.editing.queue_file import Options
from textqueue.editing.tq_file import TqFile

OLD = b"-a\n-b\n b2\n-c\n"


@pytest.mark.parametrize(
    ("mine", "theirs", "text", "overridden"),
    [
        (OLD, OLD, OLD, []),
        (OLD, b"-a\n=b\n b2\n-c\n", b"-a\n=b\n b2\n-c\n", []),
        (b"-x\n" + OLD, OLD + b"-d\n", b"-x\n" + OLD + b"-d\n", []),
        (OLD + b"-mine\n", OLD + b"-theirs\n", OLD + b"-mine\n-theirs\n", []),
        (b"-a\n-c\n", b"=a\n-b\n b2\n-c\n-d\n", b"=a\n-c\n-d\n", []),
        (b"-a\n-c\n", b"-a\n=b\n b2\n-c\n", b"-a\n-c\n", [b"=b\n b2\n"]),
        (b"-A\n-b\n b2\n-c\n", b"=a\n-b\n b2\n=c\n", b"-A\n-b\n b2\n=c\n", [b"=a\n"]),
        (b"-c\n-b\n b2\n-a\n", b"-a\n-b\n b2\n-c\n-d\n", b"-c\n-b\n b2\n-a\n-d\n", []),
        (b"-a\n-b\n b2\n-c", OLD + b"-d\n", OLD + b"-d\n", []),
        (b"", b"=a\n=b\n b2\n=c\n-d\n", b"-d\n", [b"=a\n", b"=b\n b2\n", b"=c\n"]),
    ],
)
def test_both_sides_are_kept_and_the_person_wins(
    mine: bytes, theirs: bytes, text: bytes, overridden: list[bytes]
) -> None:
    assert merge(OLD, mine, theirs) == (text, overridden)


@pytest.mark.parametrize(
    ("old", "mine", "theirs", "text", "overridden"),
    [
        (b"-a\n-a\n", b"-a\n", b"-a\n=a\n", b"=a\n", []),
        (b"-a\n-a\n", b"-a\n", b"=a\n-a\n", b"=a\n", []),
        (b"-a\n-a\n", b"-a\n", b"=a\n=a\n", b"=a\n", [b"=a\n"]),
        (b"-a\n-b\n-a\n", b"-b\n-a\n", b"=a\n-b\n-a\n", b"-b\n=a\n", []),
        (b"-a\n-b\n-a\n", b"-A\n-b\n-a\n", b"=a\n-b\n-a\n", b"-A\n-b\n=a\n", []),
        (b"=a\n-b\n-a\n", b"-b\n-a\n", b"!a\n-b\n-a\n", b"-b\n-a\n", [b"!a\n"]),
        (
            b"-a\n\\mutex=   \n-b\n-a\n\\mutex=   \n",
            b"-b\n-a\n\\mutex=   \n",
            b"-a\n\\mutex=1@h\n-b\n-a\n\\mutex=   \n",
            b"-b\n-a\n\\mutex=1@h\n",
            [],
        ),
    ],
)
def test_of_equal_messages_the_person_deletes_one_that_is_free(
    old: bytes, mine: bytes, theirs: bytes, text: bytes, overridden: list[bytes]
) -> None:
    assert merge(old, mine, theirs) == (text, overridden)
    assert merge(old, theirs, theirs) == (theirs, [])


LINES = st.lists(st.sampled_from([b"-a\n", b"=a\n", b"-b\n", b"!b\n", b"# c\n", b"\n", b"-d\n e\n"]), max_size=8)


@given(LINES, LINES, LINES, LINES)
@settings(max_examples=300, deadline=None)
def test_nothing_is_lost_without_a_report(
    old: list[bytes], mine: list[bytes], marked: list[bytes], more: list[bytes]
) -> None:
    """Programs mark the old entries, and append."""
    marks = {b"-", b"=", b"!"}
    pairs = zip([*marked, *old], old, strict=False)
    theirs = [mark[:1] + one[1:] if {mark[:1], one[:1]} <= marks else one for mark, one in pairs]
    theirs = [*theirs, *old[len(theirs) :], *more]
    before, one, other = b"".join(old), b"".join(mine), b"".join(theirs)
    assert merge(before, before, other) == (other, [])
    merged = merge(before, one, other)
    assert merged is not None
    for entry in set(mine) - set(old):
        assert merged.text.count(entry) >= 1, "nothing that the person wrote is lost"
    for entry in set(theirs) - set(old):
        assert entry in merged.text or entry in merged.overridden, "what is lost is reported"
    assert not old or merge(before, one, b"-another person\n" + other) is None


def test_many_entries_between_blank_lines_are_compared_in_linear_time() -> None:
    old = b"".join(b"-%d\n\n" % number for number in range(20_000))
    new = old.replace(b"-3\n\n", b"").replace(b"-19990\n\n", b"")
    start = time.process_time()
    merged = merge(old, new, old.replace(b"-7\n", b"=7\n"))
    assert time.process_time() - start < 20, "it took minutes, during which the queue was locked"
    assert merged == (new.replace(b"-7\n", b"=7\n"), [])


OLD_BLANKS = b"-a  \n\\retries=3 \n-b\r\n-c\n"


@pytest.mark.parametrize(
    ("mine", "saved"),
    [
        (b"-a\n\\retries=3\n-b\n-c\n", b"=a  \n\\retries=2 \n=b\r\n-c\n"),
        (b"-new\n-a\n\\retries=3\n-b\n-c\n-d\n", b"-new\n=a  \n\\retries=2 \n=b\r\n-c\n-d\n"),
    ],
)
def test_an_editor_that_trims_blanks_takes_back_no_mark(tmp_path: Path, mine: bytes, saved: bytes) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(OLD_BLANKS)
    with TextQueue(path) as q:
        for _ in range(2):
            with q.claim():
                pass
    source = TqFile(str(path), Options(OS, SYSTEM, 0, "reapply", []))
    assert save(source, OLD_BLANKS, mine) == []
    assert plain(path) == saved


def test_what_the_version_of_the_person_replaces_is_reported_after_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n\\reason=   \n-b\n")
    with TextQueue(path) as q:
        got(q).mark_as_cleared()
    source = TqFile(str(path), Options(OS, SYSTEM, 0, "reapply", []))
    new = b"-new\n-a\n\\reason=why\n-b\n"
    assert save(source, b"-a\n\\reason=   \n-b\n", new) == [b"=a\n\\reason=   \n"]
    assert plain(path) == new


def test_a_person_deletes_one_of_equal_messages_while_a_worker_marks_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_bytes(b"-a\n-b\n-a\n")
    with TextQueue(path) as q:
        held, b, claim = taken(q), taken(q), taken(q)
        assert held.give_back()
        assert b.give_back()
        old = path.read_bytes()
        assert claim.done()
        source = TqFile(str(path), Options(OS, SYSTEM, 0, "reapply", []))
        assert save(source, old, old[: len(lined(b""))] + b"-a\n-b\n") == []
        source.file.close()
        assert [m.value for m in q.messages()] == ["b"]
        assert q.conflicts == []
    assert plain(path) == b"=a\n-b\n"
