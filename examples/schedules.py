"""Items at given times: each program that opens the queue may put the schedule, and one item comes for each time."""

import sej

QUEUE = "reports"


def put_schedules(queue: sej.WorkQueue) -> None:
    """Put them at each start: what has not changed stays as it is."""
    queue.put(b"totals", every=0.3, schedule="totals")
    queue.put(b"cleanup", every="1h", schedule="cleanup", missed="skip")


with sej.open_queue(QUEUE) as queue, sej.open_queue(QUEUE) as other:
    put_schedules(queue)
    put_schedules(other)
    for worker in (queue, other, queue):
        item = worker.get(timeout=10)
        assert item is not None
        print(item.value.decode(), "for", item.headers["schedule-time"])
        item.done()
    queue.schedules.pause("totals")
    print([(each.name, each.paused) for each in queue.schedules])
    assert other.get(timeout=0.5) is None
