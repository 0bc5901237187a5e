"""Ctrl-C while a worker takes and ends items of a text queue."""

from itertools import count
from pathlib import Path

import sej
import textqueue
from tests.sej.interrupts import interrupt, locked_below


def test_a_worker_that_is_interrupted_closes_its_queue(tmp_path: Path) -> None:
    path = tmp_path / "warm.tq"

    def work() -> None:
        with sej.open_queue(path) as queue:
            queue.put(b"one")
            item = queue.get(timeout=0)
            assert item is not None
            item.done()

    work()
    for place in count(1, 7):
        path = tmp_path / f"{place}.tq"
        reached, error = interrupt(work, place, KeyboardInterrupt)
        if not reached:
            assert error is None
            break
        assert type(error) is KeyboardInterrupt, (place, error)
        error = None
        assert locked_below(tmp_path) == [], place
        if path.exists():
            with textqueue.TextQueue(path) as queue:
                assert [message.value for message in queue.messages(set(textqueue.MessageStatus))] in ([], ["one"])
    assert place > 200
