"""shard.lag: messages, bytes and seconds behind, shard by shard."""

from functools import partial
from pathlib import Path as FilePath

import pytest

import sej
import shard
from sej.journal.directory import Directory
from sej.journal.retention import clean
from sej.system.disk import OS
from tests.sej.hooks import MeanwhileDisk
from tests.sej.support import commit, write

SECOND = 1_000_000_000


def test_every_shard_has_its_row(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 2)
    for index in (0, 1, 3):
        with sej.Writer(path.dir(index), segment_bytes=100) as writer:
            writer.append_many([b"12345678"] * 10, timestamp=[number * SECOND for number in range(10)])
    commit(path.dir(0), "mailer", 7)
    commit(path.dir(1), "mailer", 10)
    rows = shard.lag(path, "mailer", now_ns=lambda: 20 * SECOND)
    assert [(row.index, row.offset, row.end_offset, row.messages, row.bytes, row.seconds) for row in rows] == [
        (0, 7, 10, 3, 3 * 34, 13.0),
        (1, 10, 10, 0, 0, 0.0),
        (2, 0, 0, 0, 0, 0.0),
        (3, 0, 10, 10, 340, 20.0),
    ]
    assert sum(row.messages for row in shard.lag(path, "nobody")) == 30


def test_messages_without_a_time_have_no_age(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 0)
    with sej.Writer(path.dir(0)) as writer:
        writer.append(b"x", timestamp=sej.NO_TIMESTAMP)
    assert [(row.messages, row.seconds) for row in shard.lag(path, "r")] == [(1, 0.0)]


def test_a_place_beyond_the_end_is_an_error(tmp_path: FilePath) -> None:
    path = shard.Path(tmp_path, "orders", 0)
    sej.Writer(path.dir(0)).close()
    FilePath(path.dir(0), "ofs", "r.ofs").write_bytes((9).to_bytes(8, "big"))
    with pytest.raises(sej.OffsetBeyondEndError, match="is at offset 9"):
        shard.lag(path, "r")
    with pytest.raises(sej.InvalidNameError):
        shard.lag(path, "../r")


def test_retention_in_the_meantime_is_no_error(tmp_path: FilePath) -> None:
    k, found = 1, set()
    while True:
        path = shard.Path(tmp_path / str(k), "orders", 0)
        write(path.dir(0), [b"12345678"] * 10, segment_bytes=100)
        directory = Directory(path.dir(0), OS)
        disk = MeanwhileDisk(k, partial(clean, directory, sej.Retention(max_bytes=1), wait=False))
        (row,) = shard.lag(path, "mailer", disk=disk)
        found.add(row.messages)
        if disk.calls < k:
            break
        k += 1
    assert found == {10, 1}
