"""What is done after a foreign change, decided without a file."""

import os
from collections import defaultdict
from typing import Final

import hypothesis.strategies as st
from hypothesis import given

from textqueue.editing.plan import Action, Known, Plan, Seen, plan
from textqueue.format.mutex import owner_text
from textqueue.format.parser import digest, essence
from textqueue.ledger.log import BESIDE, EMPTY, IN_MUTEX, SET, Record

TOKEN: Final = (1, 2, 3)
CLEARED: Final = ord("=")
OWNER: Final = owner_text()
OTHER: Final = owner_text(owner=f"{os.getpid() + 1}@elsewhere/1")
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


def only(made: Plan) -> Action:
    assert made.lost == []
    (action,) = made.actions
    return action


def test_a_mark_moves_with_its_message() -> None:
    mark = record(CLEARED, 0, b"=a\n")
    action = only(plan(Known([mark]), seen((7, b"=a\n")), reapply=True))
    assert action == Action(Seen(7, b"="), record=mark._replace(position=7))


def test_a_mark_that_was_taken_back_is_made_again() -> None:
    mark = record(CLEARED, 0, b"=a\n")
    action = only(plan(Known([mark]), seen((7, b"-a\n")), reapply=True))
    assert action.writes == [(0, b"=")]
    assert action.record == mark._replace(position=7)
    assert (action.kind, action.told) == ("reverted", "marked again as cleared")


def test_a_mark_that_was_taken_back_is_delivered_again_if_that_is_wished() -> None:
    action = only(plan(Known([record(CLEARED, 0, b"=a\n")]), seen((7, b"-a\n")), reapply=False))
    assert (action.writes, action.record) == ((), None)
    assert (action.kind, action.told) == ("reverted", "delivered again")


def test_of_equal_messages_a_mark_prefers_its_own_position() -> None:
    mark = record(CLEARED, 3, b"=a\n")
    action = only(plan(Known([mark]), seen((0, b"-a\n"), (3, b"-a\n")), reapply=True))
    assert action.place.position == 3


def test_as_many_equal_messages_are_marked_as_there_are_marks() -> None:
    marks = [record(CLEARED, 0, b"=a\n"), record(CLEARED, 3, b"=a\n")]
    made = plan(Known(marks), seen((0, b"=a\n"), (3, b"-a\n"), (6, b"-a\n")), reapply=True)
    assert [(action.place.position, bool(action.writes)) for action in made.actions] == [(0, False), (3, True)]


def test_a_message_that_is_not_there_is_lost() -> None:
    mark, claim = record(CLEARED, 0, b"=a\n"), record(BESIDE, 3, b"-b\n", OWNER)
    assert plan(Known([mark], claims=[claim]), {}, reapply=True) == Plan([], [mark, claim])


def test_a_claim_that_a_stale_buffer_blanked_is_written_again() -> None:
    raw = claimed(b"a")
    claim = record(IN_MUTEX, 0, raw, OWNER)
    action = only(plan(Known(claims=[claim]), seen((5, raw)), reapply=True))
    ((relative, data),) = action.writes
    assert raw[:relative] + data + raw[relative + len(data) :] == claimed(b"a", OWNER)
    assert action.record == claim._replace(position=5)
    assert (action.kind, action.told) == ("claim", "claimed again for its owner")


def test_a_claim_without_room_stays_in_the_ledger() -> None:
    claim = record(IN_MUTEX, 0, b"-a\n", OWNER)
    action = only(plan(Known(claims=[claim]), seen((5, b"-a\n")), reapply=True))
    assert action == Action(Seen(5, b"-a\n"), record=claim._replace(position=5, kind=BESIDE))


def test_of_equal_messages_a_claim_has_the_one_that_names_its_owner() -> None:
    first, second = claimed(b"a"), claimed(b"a", OWNER)
    claim = record(IN_MUTEX, 0, first, OWNER)
    action = only(plan(Known(claims=[claim]), seen((0, first), (len(first), second)), reapply=True))
    assert (action.place.position, action.writes) == (len(first), ())


def test_a_mark_that_is_made_again_blanks_the_claim_that_came_back_with_it() -> None:
    raw = claimed(b"a", OWNER)
    blank, mark = plan(Known([record(CLEARED, 0, raw)]), seen((0, raw)), reapply=True).actions
    assert [data for _, data in blank.writes] == [b"".ljust(ROOM)]
    assert mark.place.raw == claimed(b"a"), "it is proven as it is after the blanking"
    assert mark.writes == [(0, b"=")]


def test_a_claim_that_had_ended_is_blanked() -> None:
    raw = claimed(b"a", OWNER)
    name = digest(essence(raw))
    action = only(plan(Known(ended={(name, OWNER)}), seen((0, raw)), reapply=True))
    assert [data for _, data in action.writes] == [b"".ljust(ROOM)]
    assert action.told == "blanked again: it had ended"
    claim = record(IN_MUTEX, 0, raw, OWNER)
    again = plan(Known(claims=[claim], ended={(name, OWNER)}), seen((0, raw)), reapply=True)
    assert only(again).writes == (), "its owner has claimed it again"


def test_another_owners_claim_is_not_blanked() -> None:
    raw = claimed(b"a", OTHER)
    assert plan(Known(ended={(digest(essence(raw)), OWNER)}), seen((0, raw)), reapply=True) == Plan([], [])


def test_a_message_is_found_as_it_was_before_a_variable_was_set() -> None:
    old, new = b"-a\n\\x=1\n", b"-a\n\\x=2\n"
    was = record(SET, 0, new, digest(essence(old)))
    known = Known([record(CLEARED, 0, new)], [was])
    assert only(plan(known, seen((0, old)), reapply=True)).writes == [(0, b"=")]
    elsewhere = only(plan(known, seen((4, old)), reapply=True))
    assert (elsewhere.writes, elsewhere.told) == ((), "delivered again"), "there it may be an equal one"


RAWS = [b"-a\n", b"=a\n", b"!b\n", b"-b\n", claimed(b"c"), claimed(b"c", OWNER), claimed(b"c", OTHER)]
RECORDS = st.builds(record, st.sampled_from(list(b"=!#")), st.integers(0, 5), st.sampled_from(RAWS))
CLAIMS = st.builds(
    record,
    st.sampled_from([BESIDE, IN_MUTEX]),
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
def test_every_record_has_one_end_and_every_message_one_record(
    marks: list[Record], claims: list[Record], raws: list[bytes], reapply: bool
) -> None:
    made = plan(Known(marks, claims=claims), seen(*enumerate(raws)), reapply=reapply)
    kept = [action.record for action in made.actions if action.record is not None]
    delivered = [action for action in made.actions if action.told == "delivered again"]
    # A claim on a message that is done where it was has ended, and needs no end here.
    assert len(kept) + len(made.lost) + len(delivered) <= len(marks) + len(claims)
    assert len(kept) + len(made.lost) + len(delivered) >= len(marks)
    assert len({record.position for record in kept}) == len(kept)
    for action in made.actions:
        raw = raws[action.place.position]
        assert all(raw[:1] == b"-" and relative + len(data) <= len(raw) for relative, data in action.writes)
    assert reapply or not any(data in (b"=", b"!", b"#") for action in made.actions for _, data in action.writes)
