"""Several processes share the work; an item whose worker fails comes back."""

import multiprocessing
import os

import sej

QUEUE = "thumbnails"


def work() -> None:
    """Take items until none came for a moment; an exception gives the item back."""
    with sej.open_queue(QUEUE, lease_s=30.0) as queue:
        while item := queue.get(timeout=0.5):
            with item:
                print(f"worker {os.getpid()}: {item.value.decode()}")


if __name__ == "__main__":
    with sej.open_queue(QUEUE) as queue:
        queue.put_many([b"photo %d" % number for number in range(20)])
        workers = [multiprocessing.Process(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(queue.stats())
        assert queue.stats().done == 20
