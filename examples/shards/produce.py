"""The producer: appends an order now and then, until Ctrl-C. In two more terminals: `python examples/shards/work.py`.

    python examples/shards/produce.py            # with a number: appends so many orders immediately

Each customer's orders stay in one of the eight shards, in order. The directory is `orders-data`, in the current one.
"""

import itertools
import sys
import time

import shard

ORDERS = shard.Path("orders-data", prefix="orders", bits=3)

if __name__ == "__main__":
    numbers = range(int(sys.argv[1])) if sys.argv[1:] else itertools.count()
    with shard.Writer(ORDERS) as writer:
        try:
            for number in numbers:
                customer = b"customer %d" % (number % 20)
                index, offset = writer.append(b"order %d" % number, customer)
                print(f"order {number} of {customer.decode()} is message {offset} of shard {index}", flush=True)
                time.sleep(0.0 if sys.argv[1:] else 0.1)
        except KeyboardInterrupt:
            print("closed: every order is on the disk")
