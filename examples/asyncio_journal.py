"""asyncio: appends that wait at the same time share one sync, and a reader is an `async for`."""

import asyncio

from sej.aio import Scanner, Writer

JOURNAL = "measurements"


async def main() -> None:
    """Append from many tasks under the strictest durability, then read."""
    async with Writer(JOURNAL, durability="disk") as writer:
        offsets = await asyncio.gather(*(writer.append(b"reading %d" % number) for number in range(100)))
    print("appended, and on the disk:", len(set(offsets)))

    async with Scanner(JOURNAL, timeout=0.0) as scanner:  # timeout=None waits for more, and does not block the loop
        read = [message.value async for message in scanner]
    assert len(read) == 100


asyncio.run(main())
