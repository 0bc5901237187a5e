"""The asyncio faces: they wait without blocking the loop, share syncs, and lose nothing when cancelled."""

import asyncio
from pathlib import Path

import pytest

import sej
import sej.aio
from tests.crash.disk import CrashDisk


def test_what_is_awaited_is_read_back_in_order(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with sej.aio.Writer(tmp_path) as w:
            offsets = await asyncio.gather(*(w.append(b"%d" % n, b"k", 3, n) for n in range(100)))
            assert offsets == list(range(100))
            assert await w.append_many([b"x", b"y"]) == range(100, 102)
        async with sej.aio.Scanner(tmp_path) as s:
            return [message.value async for message in s]

    assert asyncio.run(main()) == [b"%d" % n for n in range(100)] + [b"x", b"y"]


def test_appends_that_wait_together_share_syncs() -> None:
    disk = CrashDisk()

    async def main() -> None:
        async with sej.aio.Writer("/j", durability="disk", disk=disk) as w:
            before = sum(what == "sync" for what, _ in disk.trace)
            await asyncio.gather(*(w.append(b"v") for _ in range(200)))
            assert w.writer.durable_offset == 200
            assert sum(what == "sync" for what, _ in disk.trace) - before < 20

    asyncio.run(main())


def test_an_invalid_append_does_not_stop_the_others(tmp_path: Path) -> None:
    async def main() -> list[object]:
        async with sej.aio.Writer(tmp_path) as w:
            return list(
                await asyncio.gather(w.append(b"a"), w.append(b"b", b"k" * 128), w.append(b"c"), return_exceptions=True)
            )

    first, second, third = asyncio.run(main())
    assert (first, third) == (0, 1)
    assert isinstance(second, sej.InvalidMessageError)


def test_a_scanner_follows_while_the_loop_goes_on(tmp_path: Path) -> None:
    async def main() -> list[bytes]:
        async with sej.aio.Writer(tmp_path) as w, sej.aio.Scanner(tmp_path, timeout=None) as s:
            found: list[bytes] = []

            async def follow() -> None:
                async for message in s:
                    found.append(message.value)
                    if len(found) == 3:
                        return

            following = asyncio.ensure_future(follow())
            for value in (b"a", b"b", b"c"):
                await w.append(value)
            await asyncio.wait_for(following, 30)
            return found

    assert asyncio.run(main()) == [b"a", b"b", b"c"]


def test_a_cancelled_read_takes_no_message_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with sej.aio.Writer(tmp_path) as w, sej.aio.Scanner(tmp_path, timeout=None) as s:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(s.read(), 0.01)
            await w.append(b"a")
            reading = asyncio.ensure_future(s.read())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert [message.value for message in await s.read()] == [b"a"]

    asyncio.run(main())


def test_a_writer_that_is_not_open_says_so(tmp_path: Path) -> None:
    with pytest.raises(sej.ClosedError, match="async with"):
        asyncio.run(sej.aio.Writer(tmp_path).append(b"a"))
