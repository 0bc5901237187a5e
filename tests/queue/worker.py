"""A process that puts or gets until it is killed, and reports what was acknowledged."""

import sys

import sej
from sej.queue.interface.queue import open_queue


def put(path: str, name: str, durability: str, process: str) -> None:
    with open_queue(path, name, durability=durability, segment_bytes=20_000) as q:
        number = 0
        while True:
            batch = [b"%s-%d" % (process.encode(), number + index) for index in range(number % 5 + 1)]
            q.put_many(batch)
            number += len(batch)
            print("\n".join(f"put {value.decode()}" for value in batch), flush=True)


def get(path: str, name: str, durability: str, process: str) -> None:
    with open_queue(path, name, durability=durability, max_attempts=1000, compact_bytes=20_000) as q:
        step = 0
        while True:
            for item in q.get_many(step % 3 + 1, timeout=None):
                step += 1
                # Reported before and after: between the two lines no other process may report the same item.
                print(f"got {item.value.decode()} {item.message.offset} {item.attempts}", flush=True)
                if step % 7 == 0:
                    print(f"back {item.message.offset} {item.attempts}", flush=True)
                    item.retry(0.0)
                    continue
                print(f"ending {item.message.offset} {item.attempts}", flush=True)
                try:
                    item.done()
                except sej.LeaseLostError:
                    print("LOST", flush=True)
                    continue
                print(f"done {item.value.decode()} {item.message.offset} {item.attempts}", flush=True)


if __name__ == "__main__":
    {"put": put, "get": get}[sys.argv[1]](*sys.argv[2:])
