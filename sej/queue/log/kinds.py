"""The kinds of records of a queue's state log: their fields, and what they mean. No I/O.

:class:`sej.queue.log.state.QueueState` has a handler for each kind, and :mod:`sej.queue.log.records` a constructor.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sej.queue.log.format import (
    BACK,
    BLOCK,
    BOOT,
    COUNTS,
    DEAD,
    DEDUPE,
    DONE,
    DROP,
    EXPIRE,
    EXTEND,
    FREE,
    HEADERS,
    INTENT,
    KEPT,
    KEY,
    LEASE,
    LOST,
    ORDER,
    PARK,
    PAUSE,
    PICK,
    PURGE,
    RATE,
    SCAN,
    START,
    WAIT,
    WORDS,
)


class Kind(NamedTuple):
    """A kind of record.

    Attributes:
        name: as on the format's page.
        fields: each field's name, and the word of the record that holds it.
        says: what the record means.
    """

    name: str
    fields: dict[str, str]
    says: str

    def read(self) -> Callable[[tuple[Any, ...]], tuple[int, ...]]:
        """Return the function that takes the fields out of the words of a record."""
        indexes = [WORDS.index(word) for word in self.fields.values()]
        if len(indexes) > 1:
            return itemgetter(*indexes)
        only = indexes[0]
        return lambda row: (row[only],)


def _kind(name: str, fields: str, says: str) -> Kind:
    """Return a kind whose fields are ``name=word``, or only the word if it is the field's name."""
    pairs = [field.partition("=") for field in fields.split()]
    return Kind(name, {field: word or field for field, _, word in pairs}, says)


KINDS: Final[dict[int, Kind]] = {
    LEASE: _kind(
        "LEASE",
        "first=offset stop=a attempt holder deadline_ns=b stamp=extra",
        "the fresh messages first..stop-1 are leased to holder until deadline_ns; attempt: 1; stamp: of the last one",
    ),
    DONE: _kind(
        "DONE",
        "first=offset stop=a stamp=extra",
        "first..stop-1 are done; stamp: of the last one, or 0",
    ),
    PICK: _kind(
        "PICK",
        "offset attempt holder deadline_ns=b priority key_id=a stamp=extra",
        "offset, out of order, is leased to holder until deadline_ns; attempt: the number of this lease; key_id and"
        " stamp: 0 if the queue has no order of keys",
    ),
    WAIT: _kind(
        "WAIT",
        "offset ready_at_ns=b attempt priority exhausted=extra stamp=a",
        "offset may be taken from ready_at_ns on; attempt: how often it was leased; exhausted 1: offset, of this"
        " stamp, is being given up",
    ),
    EXTEND: _kind(
        "EXTEND",
        "offset deadline_ns=b attempt",
        "the lease of offset lasts until deadline_ns",
    ),
    FREE: _kind(
        "FREE",
        "holder",
        "every lease of holder is given back",
    ),
    DEAD: _kind(
        "DEAD",
        "offset attempt stamp=extra",
        "offset is a dead letter; stamp: of its message, or 0",
    ),
    INTENT: _kind(
        "INTENT",
        "offset timestamp=a check=extra ready_at_ns=b priority",
        "the message that will be offset, with this timestamp and CRC32C, waits until ready_at_ns",
    ),
    EXPIRE: _kind(
        "EXPIRE",
        "offset timestamp=a check=extra at_ns=b",
        "the message offset, with this timestamp and CRC32C, expires at at_ns",
    ),
    DEDUPE: _kind(
        "DEDUPE",
        "key_high=holder key_low=a offset until_ns=b check=extra",
        "until until_ns the key with this hash means message offset with this CRC32C; until_ns 0: it means nothing",
    ),
    KEPT: _kind(
        "KEPT",
        "offset now_ns=b",
        "NAME.ofs holds offset; it is now_ns",
    ),
    PURGE: _kind(
        "PURGE",
        "frontier=offset stop=a",
        "everything below stop that is not leased is removed; frontier: where fresh messages began",
    ),
    DROP: _kind(
        "DROP",
        "offset",
        "the INTENT for offset is void: its message does not match",
    ),
    BOOT: _kind(
        "BOOT",
        "id_high=offset id_low=a began_ns=b now_high=holder now_low=extra",
        "times below are of the boot with this id, which began at began_ns of the wall clock; it is now",
    ),
    START: _kind(
        "START",
        "frontier=offset newest=a stamp=extra",
        "fresh messages begin at frontier; newest, with this stamp, was taken last",
    ),
    COUNTS: _kind(
        "COUNTS",
        "done=offset dead=a lost=b",
        "so many items were done, dead and lost so far; the last record of a rewritten log",
    ),
    LOST: _kind(
        "LOST",
        "first=offset stop=a parked=b",
        "first..stop-1 were removed from the journal before they were done; leased ones are not meant; parked: how many"
        " of them were parked",
    ),
    BACK: _kind(
        "BACK",
        "journal=a stop=offset count=extra",
        "the dead letters below stop, in the journal whose id begins with journal, were put back; count: how many",
    ),
    ORDER: _kind(
        "ORDER",
        "order=offset block=a max_attempts=attempt",
        "order 1: items of a key are delivered in order; 0: they are not; block 1: a dead letter keeps its key;"
        " max_attempts: after so many an item becomes a dead letter; 0: as before, at first 5",
    ),
    KEY: _kind(
        "KEY",
        "offset key_id=a holds=b",
        "the key of offset, which is leased or waiting; holds 1: it was delivered and keeps its key",
    ),
    SCAN: _kind(
        "SCAN",
        "stop=offset count=a stamp=extra",
        "fresh messages begin at stop; count of those before it are parked; stamp: of the last one before it, or 0",
    ),
    PARK: _kind(
        "PARK",
        "key_id=a first=offset",
        "from first on, the messages of this key that were passed by are parked; first 2^63-1: none is",
    ),
    BLOCK: _kind(
        "BLOCK",
        "offset key_id=a on=b",
        "the dead letter offset keeps its key; on 0: it does not any more",
    ),
    PAUSE: _kind(
        "PAUSE",
        "on=offset",
        "on 1: no item is delivered; 0: items are delivered again",
    ),
    RATE: _kind(
        "RATE",
        "full_at_ns=b",
        "the token bucket of the rate is full at full_at_ns",
    ),
    HEADERS: _kind(
        "HEADERS",
        "offset part=attempt text_1=holder text_2=a text_3=b text_4=extra",
        "24 bytes of the headers of the message offset; part: which ones, from 0",
    ),
}
"""Each kind of record: its name, its fields and what it means."""
