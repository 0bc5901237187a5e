"""Several processes share the work. If a worker fails, its item is delivered again."""

import multiprocessing
import os

import sej

QUEUE = "thumbnails"


def work() -> None:
    """Take items until none has come for a moment. An exception gives the item back."""
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
