"""A process that reads many lines of the ledger in one block knows the same as one that reads them one by one."""

import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from sej.system.disk import OS
from textqueue.format.kinds import APPENDED, ENDED, GIVEN_BACK, IN_LEDGER, IN_MUTEX, SET, STATE
from textqueue.ledger.log import Ledger
from textqueue.ledger.records import EMPTY, Record

TOKEN = (1, 100, 1000)
OWNER = b"1@host/1"
LINES = st.lists(
    st.tuples(
        st.sampled_from([ord("="), ord("!"), APPENDED, GIVEN_BACK, IN_LEDGER, IN_MUTEX, ENDED, SET]),
        st.sampled_from([0, 10, 20]),
        st.sampled_from([b"a" * 24, b"b" * 24]),
    ),
    max_size=12,
)


def known(ledger: Ledger) -> object:
    shown = ledger.shown and (ledger.shown.kind, ledger.shown.position, ledger.shown.digest)
    claims = {at: (claim.kind, claim.digest, claim.owner) for at, claim in ledger.claims.items()}
    return shown, claims, sorted(ledger.given_back), ledger.lines, ledger.token


@given(LINES)
def test_a_block_is_read_as_its_lines(lines: list[tuple[int, int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "log")
        writer, one, block = (Ledger(path, disk=OS, queue=None) for _ in range(3))
        writer.refresh()
        writer.append([Record(STATE, 5, b"2", TOKEN, EMPTY)])
        one.refresh(look=True)
        block.refresh(look=True)
        for kind, position, name in lines:
            writer.append([Record(kind, position, name, TOKEN, OWNER if kind in (IN_LEDGER, IN_MUTEX) else EMPTY)])
            one.refresh()
        block.refresh()
        assert known(block) == known(one) == known(writer)
        for ledger in (writer, one, block):
            ledger.close()
