"""A process that waits for items; with "events", it hangs if no event wakes it."""

import sys

import sej
from sej.system.watch import Watch

FOR_EVER_S = 1e6


def wait(path: str, how: str) -> None:
    if how == "events":
        assert Watch.__init__.__kwdefaults__ is not None
        Watch.__init__.__kwdefaults__["safety_s"] = FOR_EVER_S
    with sej.open_queue(path, max_attempts=1000) as q:
        print("waits", flush=True)
        while (item := q.get()) is not None:
            item.done()


if __name__ == "__main__":
    wait(*sys.argv[1:])
