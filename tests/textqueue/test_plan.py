"""The plan after a foreign change, without a file."""

import os
from collections import defaultdict
from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import given

from textqueue.editing.plan import STEPS_NS, Action, Known, Plan, Seen, plan
from textqueue.format.mutex import owner_text
from textqueue.format.parser import digest, essence
from textqueue.format.windows import shared
from textqueue.ledger.records import APPENDED, EMPTY, GIVEN_BACK, IN_LEDGER, IN_MUTEX, SET, Record

TOKEN: Final = (1, 2, 3)
CLEARED: Final = ord("=")
OWNER: Final = owner_text()
OTHER: Final = owner_text(f"{os.getpid() + 1}@elsewhere/1")
ROOM: Final = 64


def record(kind: int, position: int, raw: bytes, owner: bytes = EMPTY) -> Record:
    return Record(kind, position, digest(essence(raw)), TOKEN, owner)


def claimed(text: bytes, owner: bytes = b"") -> bytes:
    return b"-" + text + b"\n\\mutex=" + owner.ljust(ROOM) + b"\n"


def seen(*raws: tuple[int, bytes]) -> dict[bytes, list[Seen]]:
    found: dict[bytes, list[Seen]] = defaultdict(list)
    for position, raw in raws:
        found[digest(essence(raw))].append(Seen(position, raw if raw[:1] == b"-" else raw[:1]))
    return dict(found)


def only(made: Plan) -> tuple[Action, Record]:
    """Return the only action of a plan, and the only record that it keeps."""
    assert made.lost == []
    (action,) = made.actions
    (record,) = made.kept.values()
    return action, record


def test_a_mark_moves_with_its_message() -> None:
    mark = record(CLEARED, 0, b"=a\n")
    made = plan(Known([mark]), seen((7, b"=a\n")), reapply=True)
    assert made == Plan([], {0: mark._replace(position=7)}, [], [])


def test_a_mark_that_a_stale_save_reverted_is_made_again() -> None:
    mark = record(CLEARED, 0, b"=a\n")
    action, kept = only(plan(Known([mark]), seen((7, b"-a\n")), reapply=True))
    assert action.writes == [(0, b"=")]
    assert kept == mark._replace(position=7)
    assert (action.kind, action.report) == ("reverted", "marked again as cleared")


def test_a_mark_that_a_stale_save_reverted_is_forgotten_with_deliver() -> None:
    made = plan(Known([record(CLEARED, 0, b"=a\n")]), seen((7, b"-a\n")), reapply=False)
    (action,) = made.actions
    assert (action.writes, made.kept) == ((), {})
    assert (action.kind, action.report) == ("reverted", "delivered again")


@pytest.mark.parametrize(
    ("older_ns", "later_ns", "saved_ns", "reopened"),
    [
        (0, STEPS_NS, 2 * STEPS_NS, True),
        (1, STEPS_NS, 2 * STEPS_NS, False),  # both edits may be in one read
        (0, STEPS_NS, 2 * STEPS_NS - 1, False),  # the later edit may be in that save
    ],
)
def test_an_edit_while_another_program_had_the_file_open(
    older_ns: int, later_ns: int, saved_ns: int, *, reopened: bool
) -> None:
    older = record(CLEARED, 0, b"=a\n")._replace(token=(1, 6, older_ns))
    later = record(CLEARED, 3, b"=b\n")._replace(token=shared((1, 6, later_ns)))
    made = plan(Known([older, later], saved_ns=saved_ns), seen((0, b"-a\n"), (3, b"=b\n")), reapply=True)
    assert [action.report for action in made.actions] == ([] if reopened else ["marked again as cleared"])
    assert made.kept.keys() == ({1} if reopened else {0, 1})


@pytest.mark.parametrize(
    "later",
    [
        record(CLEARED, 3, b"=b\n"),
        record(APPENDED, 3, b"-b\n"),
        record(IN_MUTEX, 3, claimed(b"b"), OWNER),
        record(SET, 3, b"-b\n\\x=2\n", b"before"),
    ],
)
def test_a_mark_that_a_user_removed_is_forgotten_if_a_later_edit_is_still_there(later: Record) -> None:
    mark = record(CLEARED, 0, b"=a\n")
    there = {
        CLEARED: b"=b\n",
        APPENDED: b"-b\n",
        IN_MUTEX: claimed(b"b", OWNER),
        SET: b"-b\n\\x=2\n",
    }[later.kind]
    made = plan(Known([mark, later]), seen((0, b"-a\n"), (3, there)), reapply=True)
    assert (made.actions, made.lost, list(made.kept)) == ([], [], [1] if later.kind != SET else [])
    earlier = plan(Known([later, mark]), seen((0, b"-a\n"), (3, there)), reapply=True)
    assert [(action.writes, action.kind) for action in earlier.actions] == [([(0, b"=")], "reverted")]


def test_the_mark_of_a_user_shows_no_later_edit() -> None:
    mark, later = record(CLEARED, 0, b"=a\n"), record(CLEARED, 3, b"=b\n")
    made = plan(Known([mark, later]), seen((0, b"-a\n"), (3, b"#b\n")), reapply=True)
    assert [(action.writes, action.kind) for action in made.actions] == [([(0, b"=")], "reverted")]


def test_a_message_that_was_given_back_shows_no_later_edit() -> None:
    mark, back = record(CLEARED, 0, b"=a\n"), record(GIVEN_BACK, 3, b"-b\n")
    made = plan(Known([mark, back]), seen((0, b"-a\n"), (3, b"-b\n")), reapply=True)
    assert [(action.writes, action.kind) for action in made.actions] == [([(0, b"=")], "reverted")]


def test_a_message_appended_after_a_mark_is_not_the_marked_one() -> None:
    mark, new = record(CLEARED, -9, b"=a\n"), record(APPENDED, 4, b"-a\n")
    made = plan(Known([mark, new], grown=8), seen((12, b"-a\n")), reapply=True)
    assert made == Plan([], {1: new._replace(position=12)}, [0], [])


def test_of_equal_messages_a_mark_prefers_its_own_position() -> None:
    mark = record(CLEARED, 3, b"=a\n")
    action, _ = only(plan(Known([mark]), seen((0, b"-a\n"), (3, b"-a\n")), reapply=True))
    assert action.place.position == 3
    action, _ = only(plan(Known([mark], grown=5), seen((0, b"-a\n"), (8, b"-a\n")), reapply=True))
    assert action.place.position == 8, "or where that is if all bytes were inserted above it"


def test_as_many_equal_messages_are_marked_as_there_are_marks() -> None:
    marks = [record(CLEARED, 0, b"=a\n"), record(CLEARED, 3, b"=a\n")]
    made = plan(Known(marks), seen((0, b"=a\n"), (3, b"-a\n"), (6, b"-a\n")), reapply=True)
    assert [(action.place.position, action.writes) for action in made.actions] == [(3, [(0, b"=")])]
    assert {at: one.position for at, one in made.kept.items()} == {0: 0, 1: 3}


def test_a_record_without_a_message_is_lost() -> None:
    mark, claim = record(CLEARED, 0, b"=a\n"), record(IN_LEDGER, 3, b"-b\n", OWNER)
    assert plan(Known([mark, claim]), {}, reapply=True) == Plan([], {}, [0, 1], [])


def test_a_claim_that_a_stale_buffer_blanked_is_written_again() -> None:
    raw = claimed(b"a")
    claim = record(IN_MUTEX, 0, raw, OWNER)
    action, kept = only(plan(Known([claim]), seen((5, raw)), reapply=True))
    ((relative, data),) = action.writes
    assert raw[:relative] + data + raw[relative + len(data) :] == claimed(b"a", OWNER)
    assert kept == claim._replace(position=5)
    assert (action.kind, action.report) == ("claim", "claimed again for its owner")


def test_a_claim_without_space_stays_in_the_ledger() -> None:
    claim = record(IN_MUTEX, 0, b"-a\n", OWNER)
    made = plan(Known([claim]), seen((5, b"-a\n")), reapply=True)
    assert made == Plan([], {0: claim._replace(position=5, kind=IN_LEDGER)}, [], [], unwritten={(claim.digest, OWNER)})


def test_of_equal_messages_a_claim_gets_the_one_with_its_owner() -> None:
    first, second = claimed(b"a"), claimed(b"a", OWNER)
    claim = record(IN_MUTEX, 0, first, OWNER)
    made = plan(Known([claim]), seen((0, first), (len(first), second)), reapply=True)
    assert made == Plan([], {0: claim._replace(position=len(first))}, [], [])


def test_a_mark_that_is_made_again_blanks_the_restored_claim() -> None:
    raw = claimed(b"a", OWNER)
    blank, mark = plan(Known([record(CLEARED, 0, raw)]), seen((0, raw)), reapply=True).actions
    assert [data for _, data in blank.writes] == [b"".ljust(ROOM)]
    assert mark.place.raw == claimed(b"a"), "it is proven as it is after the blanking"
    assert mark.writes == [(0, b"=")]


def test_a_claim_that_had_ended_is_blanked() -> None:
    raw = claimed(b"a", OWNER)
    name = digest(essence(raw))
    (action,) = plan(Known(ended={(name, OWNER)}), seen((0, raw)), reapply=True).actions
    assert [data for _, data in action.writes] == [b"".ljust(ROOM)]
    assert action.report == "blanked again: it had ended"
    claim = record(IN_MUTEX, 0, raw, OWNER)
    again = plan(Known([claim], ended={(name, OWNER)}), seen((0, raw)), reapply=True)
    assert again.actions == [], "its owner has claimed it again"


def test_another_owners_claim_is_not_blanked() -> None:
    raw = claimed(b"a", OTHER)
    assert plan(Known(ended={(digest(essence(raw)), OWNER)}), seen((0, raw)), reapply=True) == Plan([], {}, [], [])


def test_a_message_is_found_as_it_was_before_a_variable_was_set() -> None:
    old, new = b"-a\n\\x=1\n", b"-a\n\\x=2\n"
    known = Known([record(SET, 0, new, digest(essence(old))), record(CLEARED, 0, new)])
    for position in (0, 4):  # also if the user inserted a line above it
        (action,) = plan(known, seen((position, old)), reapply=True).actions
        assert (action.place.position, action.writes) == (position, [(0, b"=")])


RAWS = [b"-a\n", b"=a\n", b"!b\n", b"-b\n", claimed(b"c"), claimed(b"c", OWNER), claimed(b"c", OTHER)]
RECORDS = st.builds(record, st.sampled_from(list(b"=!#")), st.integers(0, 5), st.sampled_from(RAWS))
CLAIMS = st.builds(
    record,
    st.sampled_from([IN_LEDGER, IN_MUTEX]),
    st.integers(0, 5),
    st.sampled_from(RAWS),
    st.sampled_from([OWNER, OTHER]),
)


@given(
    marks=st.lists(RECORDS, max_size=5),
    claims=st.lists(CLAIMS, max_size=5),
    raws=st.lists(st.sampled_from(RAWS), max_size=6),
    reapply=st.booleans(),
)
def test_every_record_has_one_result_and_every_message_at_most_one_record(
    marks: list[Record], claims: list[Record], raws: list[bytes], reapply: bool
) -> None:
    made = plan(Known([*marks, *claims]), seen(*enumerate(raws)), reapply=reapply)
    # A claim of a message that is done has ended. A mark of a message that a user reopened is forgotten.
    assert len(made.kept) + len(made.lost) <= len(marks) + len(claims)
    assert len({record.position for record in made.kept.values()}) == len(made.kept)
    for action in made.actions:
        raw = raws[action.place.position]
        assert all(raw[:1] == b"-" and relative + len(data) <= len(raw) for relative, data in action.writes)
    assert reapply or not any(data in (b"=", b"!", b"#") for action in made.actions for _, data in action.writes)
