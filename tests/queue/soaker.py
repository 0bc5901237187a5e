"""A process of the soak: it puts, or takes and ends, until it is killed. Each line of its output is one write."""

import os
import sys
import time

import sej

OUTPUT = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def say(*words: object) -> None:
    os.write(OUTPUT, (" ".join(map(str, words)) + "\n").encode())


def put(path: str) -> None:
    with sej.open_queue(path, "worker") as q:
        for step in range(10**9):
            kind = b"abcd"[step % 4 : step % 4 + 1]
            delay_s = 0.05 if kind == b"d" else 0.0
            value = b"%d %d" % (os.getpid(), step)
            number = q.put(value, kind, delay_s=delay_s, keep_result="1h", headers={"step": str(step)})
            say("put", int(number), value.decode().replace(" ", "/"))
            while step % 8 == 0 and len(q) > 200:
                q.wait_empty(0.02)


def work(path: str) -> None:
    with sej.open_queue(path, "worker", backoff_s=0.01) as q:
        while (item := q.get()) is not None:
            offset, headers = item.message.offset, item.headers
            say("begin", item.key.decode(), offset, item.attempts, headers.get("schedule-time", "-"))
            step = int(headers.get("step", 0))
            try:
                if step % 11 == 5:
                    item.retry(0.01, "returned")  # until it is a dead letter
                elif step % 11 == 7 and item.attempts < 2:
                    item.retry(0.01)
                elif step % 23 == 9:
                    item.fail("refused")
                else:
                    say("end", item.key.decode(), offset)
                    item.done(b"result of " + item.value)
            except sej.LeaseLostError:
                say("LOST", offset)


def limited(path: str) -> None:
    with sej.open_queue(path, "limited") as q:
        while (item := q.get()) is not None:
            say("take", item.key.decode(), os.getpid(), time.monotonic())
            again = item.message.offset % 7 == 3 and item.attempts < 2
            say("give", item.key.decode(), os.getpid())
            if again:
                item.retry(0.01)
            else:
                item.done()


if __name__ == "__main__":
    {"put": put, "work": work, "limited": limited}[sys.argv[1]](sys.argv[2])
