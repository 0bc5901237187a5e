"""``pipeline.follow``: batches as messages arrive, and the offsets to commit."""

import contextlib
import shutil
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import hub
import pipeline
import sej
from hub.wire import Server
from tests.pipeline.conftest import BASE_NS, fill
from tests.sej.support import commit, write


def values(stream: pipeline.Stream) -> list[bytes]:
    return [value for batch, _ in stream for value in batch.column("value").to_pylist()]


def test_existing_messages_then_the_end(journal: Path) -> None:
    with pipeline.follow(journal, timeout=0.0) as stream:
        arrived = list(stream)
    assert [batch.num_rows for batch, _ in arrived] == [100]
    assert arrived[0].offsets == {"journal": 100}
    assert stream.schema == pipeline.table(journal).schema == arrived[0].batch.schema


def test_a_reader_continues_after_what_it_committed(shards: Path) -> None:
    with pipeline.follow(shards, reader="copy", columns=["shard", "offset"], batch_rows=30, timeout=0.0) as stream:
        first = next(stream)
        stream.commit(first.offsets)
        second = next(stream)
    assert first.batch.num_rows >= 30
    with pipeline.follow(shards, reader="copy", columns=["shard", "offset"], timeout=0.0) as stream:
        again = [row for batch, _ in stream for row in batch.to_pylist()]
        stream.commit()
    assert again[: second.batch.num_rows] == second.batch.to_pylist(), "what was not committed is delivered again"
    assert first.batch.num_rows + len(again) == 100
    assert [sej.read_offset(path, "copy") for path in sorted(shards.iterdir())] == [10, 20, 30, 40]
    with pipeline.follow(shards, reader="copy", timeout=0.0) as stream:
        assert list(stream) == []


def test_new_messages_and_new_directories_arrive(shards: Path) -> None:
    with pipeline.follow(shards, columns=["value"], batch_age_s=0.0) as stream:
        seen = 0
        while seen < 100:
            seen += next(stream).batch.num_rows
        fill(shards / "orders.2.001", 2, first=20, tag="new")
        assert next(stream).batch.column("value").to_pylist() == [b"new-20", b"new-21"]
        fill(shards / "other.1.000", 1, tag="other")
        arrived = next(stream)
        assert arrived.batch.column("value").to_pylist() == [b"other-0"]
        assert arrived.offsets["orders.2.001"] == 22 and arrived.offsets["other.1.000"] == 1


@pytest.mark.parametrize(("given", "new"), [("*/orders", "b/orders"), ("a", "a/payments")])
def test_sources_that_appear_below_a_glob_or_a_directory(tmp_path: Path, given: str, new: str) -> None:
    old, more = tmp_path / "a" / "orders", tmp_path / new
    fill(old / "orders.0.000", 3)
    with pipeline.follow(tmp_path / given, reader="r", columns=["source", "offset"], batch_age_s=0.0) as stream:
        assert next(stream).batch.to_pydict() == {"source": [str(old)] * 3, "offset": [0, 1, 2]}
        fill(more / "x.0.000", 2)
        batch, offsets = next(stream)
        assert batch.to_pydict() == {"source": [str(more)] * 2, "offset": [0, 1]}
        assert offsets == {str(old / "orders.0.000"): 3, str(more / "x.0.000"): 2}
        stream.commit(offsets)
    again = pipeline.table(tmp_path / given, where=[("source", "=", str(more))])
    assert again.count() == again.to_arrow().num_rows == 2


def test_batches_end_by_rows_bytes_and_age(tmp_path: Path) -> None:
    write(tmp_path, [b"x" * 1000] * 100_000)
    with pipeline.follow(tmp_path, columns=["value"], batch_rows=20_000, timeout=0.0) as stream:
        by_rows = [batch.num_rows for batch, _ in stream]
    with pipeline.follow(tmp_path, columns=["value"], batch_bytes=10 << 20, timeout=0.0) as stream:
        by_bytes = [batch.nbytes for batch, _ in stream]
    assert sum(by_rows) == 100_000 and max(by_rows) < 40_000 and len(by_rows) > 2
    assert max(by_bytes) < 14 << 20 and len(by_bytes) > 5


def test_a_wait_ends_by_stop(journal: Path) -> None:
    with pipeline.follow(journal, batch_age_s=0.0) as stream:
        assert next(stream).batch.num_rows == 100
        threading.Timer(0.0, stream.stop).start()
        with pytest.raises(StopIteration):
            next(stream)


def test_where_it_starts(journal: Path) -> None:
    def offsets(**given: Any) -> list[int]:
        with pipeline.follow(journal, columns=["offset"], timeout=0.0, **given) as stream:
            return [offset for batch, _ in stream for offset in batch.column("offset").to_pylist()]

    assert offsets(start=97) == [97, 98, 99]
    assert offsets(start=datetime.fromtimestamp(BASE_NS // 10**9 + 98, UTC)) == [98, 99]
    assert offsets(start=1000) == []
    assert offsets(start=50, where="offset < 52") == [50, 51]
    assert offsets(where=f"timestamp_ns >= {BASE_NS + 99 * 10**9} AND key != 'x'") == [99]
    assert offsets(start=97, reader="r") == [97, 98, 99]
    commit(journal, "r", 10)
    assert offsets(start=97, reader="r") == list(range(10, 100)), "a kept offset takes precedence"


def test_a_start_beyond_the_end_waits(journal: Path) -> None:
    with pipeline.follow(journal, columns=["offset"], start=102, batch_age_s=0.0) as stream:
        fill(journal, 5, first=100)
        assert next(stream).batch.column("offset").to_pylist() == [102, 103, 104]


def test_one_reader_of_a_name(journal: Path) -> None:
    with pipeline.follow(journal, reader="r", timeout=0.0) as first:
        next(first)
        with pipeline.follow(journal, reader="r", timeout=0.0) as second, pytest.raises(sej.LockedError):
            next(second)
    with pytest.raises(sej.ClosedError):
        next(first)
    with pytest.raises(sej.ClosedError):
        first.commit({"journal": 3})


def test_good_rows_come_before_the_error(tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j", segment_bytes=1 << 16) as writer:
        for _ in range(20):
            writer.append_many([b"x" * 1000] * 10)
    segment = sorted((tmp_path / "j" / "jnl").iterdir())[1]
    segment.write_bytes(segment.read_bytes().replace(b"x" * 1000, b"y" * 1000))
    first = int(segment.stem, 16)
    with pipeline.follow(tmp_path / "j", reader="r", timeout=0.0) as stream:
        arrived = next(stream)
        assert (arrived.batch.num_rows, arrived.offsets) == (first, {"j": first})
        stream.commit(arrived.offsets)
        with pytest.raises(sej.CorruptionError):
            next(stream)
        with pytest.raises(
            sej.ClosedError, match=r"an exception has ended the stream \(CorruptionError: .*open another"
        ):
            list(stream)  # it does not look as if no message were left
    with pipeline.follow(tmp_path / "j", reader="r", timeout=0.0, on_corruption="skip") as stream:
        assert next(stream).offsets == {"j": 200}


def test_damage_at_the_end_of_what_was_read_is_no_end(tmp_path: Path) -> None:
    """A run that begins at the damage looks at the journal once, as `sej ship` does that a timer starts."""
    write(tmp_path / "j", [b"x" * 10] * 100)
    (segment,) = (tmp_path / "j" / "jnl").iterdir()
    data = bytearray(segment.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 20] = b"\xff" * 20
    segment.write_bytes(data)
    shutil.rmtree(tmp_path / "j" / "idx")
    with pipeline.follow(tmp_path / "j", reader="r", timeout=0.0) as stream:
        assert next(stream).batch.num_rows == 50
        stream.commit()
    for _ in range(2):
        with pipeline.follow(tmp_path / "j", reader="r", timeout=0.0) as stream, pytest.raises(sej.CorruptionError):
            next(stream)
    with pipeline.follow(tmp_path / "j", reader="r", timeout=0.0, on_corruption="skip") as stream:
        assert [offsets for _, offsets in stream] == [{"j": 100}]


def test_a_journal_that_is_recreated_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """The next segment of the new one has the same name, and other messages with the next offsets."""

    def create(tag: bytes) -> None:
        write(tmp_path / "j", [b"%s-%04d" % (tag, number) * 100 for number in range(5000)], segment_bytes=200_000)

    create(b"old")
    with pipeline.follow(tmp_path / "j", reader="r", batch_rows=1, timeout=0.0) as stream:
        seen = next(stream).batch.column("value").to_pylist()
        assert len(seen) < 5000
        shutil.rmtree(tmp_path / "j")
        create(b"new")
        with pytest.raises(sej.TruncatedError, match="removed or re-created while it was read"):
            seen += values(stream)
    assert not [value for value in seen if not value.startswith(b"old")]
    with pipeline.follow(tmp_path / "j", reader="r", timeout=0.0) as stream:
        assert values(stream) == [b"new-%04d" % number * 100 for number in range(5000)]


def test_a_journal_that_was_recreated_is_an_error(tmp_path: Path, journal: Path) -> None:
    with pipeline.follow(journal, batch_age_s=0.0) as stream:
        assert next(stream).batch.num_rows == 100
        journal.rename(tmp_path / "old")
        fill(journal, 100)
        with pytest.raises(sej.OffsetBeyondEndError, match=r"re-created .*; open it again to continue"):
            next(stream)


@pytest.mark.parametrize("far", [False, True])
def test_a_journal_that_was_removed_is_an_error(hub_root: Path, far: bool) -> None:
    """It may have had messages that the stream did not read."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(stack.enter_context(hub.Store(hub_root)), "127.0.0.1:0")) if far else None
        stream = stack.enter_context(
            pipeline.follow(None if server else hub_root, hub=server.address if server else None, batch_age_s=0.0)
        )
        seen = 0
        while seen < 25:
            seen += next(stream).batch.num_rows
        shutil.rmtree(hub_root / "berlin.plain.log")
        with pytest.raises(sej.JournalNotFoundError, match=r"'berlin\.plain\.log' was removed since"):
            next(stream)


def test_a_hub_is_followed(hub_root: Path) -> None:
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        with pipeline.follow("berlin", hub=server.address, batch_age_s=0.0) as stream:
            seen = 0
            while seen < 14:
                seen += next(stream).batch.num_rows
            store.put("berlin", "plain.log", [sej.Message(3, 5, 0, b"k", b"new")])
            arrived = next(stream)
        assert arrived.batch.column("value").to_pylist() == [b"new"]
        assert arrived.offsets["berlin.plain.log"] == 4


def test_a_reader_on_a_hub_continues_after_what_it_committed(
    hub_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        options: dict[str, Any] = {"hub": server.address, "reader": "copy", "columns": ["value"], "batch_rows": 1}
        with pipeline.follow("berlin", timeout=0.0, **options) as stream:
            first = next(stream)
            rest = sum(batch.num_rows for batch, _ in stream)
            stream.commit(first.offsets)
            monkeypatch.setattr("pipeline.reading.remote._LEASE_S", 1.0)
            monkeypatch.setattr("pipeline.reading.remote._SPARE_S", 0.0)
            with pipeline.follow("berlin", timeout=0.0, **options) as other, pytest.raises(sej.LockedError):
                next(other)
            lag = {str(journal.source): journal.lag["copy"] for journal in hub.stats(hub_root) if journal.lag}
            assert sum(lag.values()) == rest
        with pipeline.follow("berlin", timeout=0.0, **options) as stream:
            for batch, offsets in stream:
                rest -= batch.num_rows
                stream.commit(offsets)
        assert rest == 0
        store.put("berlin", "plain.log", [sej.Message(3, 5, 0, b"k", b"new")])
        with pipeline.follow("berlin", timeout=0.0, **options) as stream:
            assert next(stream).batch.column("value").to_pylist() == [b"new"]


def test_arguments(journal: Path, tmp_path: Path) -> None:
    def error(path: Path = journal, **given: Any) -> str:
        with pytest.raises((ValueError, TypeError, sej.SejError)) as raised:
            pipeline.follow(path, **given)
        return str(raised.value)

    (tmp_path / "jobs.tq").write_text("-one\n")
    assert "only journals can be followed" in error(tmp_path / "jobs.tq")
    assert "batch_rows must be at least 1" in error(batch_rows=0)
    assert "batch_bytes must be 1 to" in error(batch_bytes=1 << 31)
    assert "unknown column" in error(columns=["ofset"])
    with pipeline.follow(journal, timeout=0.0) as stream, pytest.raises(pipeline.OptionError, match="pass reader"):
        stream.commit({"journal": 1})
    with sej.Writer(tmp_path / "cut", segment_bytes=1 << 12) as writer:
        writer.append_many([b"x" * 5000] * 3)
        for _ in range(3):
            writer.append(b"x" * 5000)
    sej.Journal(tmp_path / "cut").clean(max_bytes=1)
    with pipeline.follow(tmp_path / "cut", start=0, timeout=0.0) as stream, pytest.raises(sej.OffsetTooSmallError):
        next(stream)
