"""Staged rows around the size of the chunks in which they are read: they are checked and renumbered as a whole."""

import os
from pathlib import Path

import pytest

import sej
from sej.codec import decode_many, encode
from sej.codec.format import OVERHEAD_SIZE
from sej.system.checksum import crc32c
from shard.staging import Owner, Rows, StagedRowsError, check_rows, renumbered

CHUNK = 1 << 18
SIZES = {
    "one byte less than a chunk": [CHUNK - OVERHEAD_SIZE - 1],
    "one chunk": [CHUNK - OVERHEAD_SIZE],
    "one byte more": [CHUNK - OVERHEAD_SIZE + 1],
    "a small one, and one that is larger than four chunks": [1, 4 * CHUNK + 3, 1],
    "many on the border of chunks": [CHUNK // 3] * 10,
}


def staged(path: Path, data: bytes, messages: int) -> Rows:
    path.write_bytes(data)
    return Rows(0, str(path), messages, len(data), crc32c(data), "1")


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_messages_of_any_size_are_checked_and_renumbered(tmp_path: Path, sizes: list[int]) -> None:
    data = b"".join(encode(number, 7, 1, b"k", b"v" * size) for number, size in enumerate(sizes))
    rows = staged(tmp_path / "rows", data, len(sizes))
    check_rows([rows])
    found = b"".join(bytes(chunk) for chunk in renumbered([rows, rows], 5))
    expected = [sej.Message(5 + n, 7, 1, b"k", b"v" * size) for n, size in enumerate(sizes * 2)]
    assert decode_many(found, 0, len(found), 5, len(expected))[0] == expected

    for wrong in (data[:-1], data + data[:7], data + b"\0" * 30, b"\xff" * 8 + data[8:]):
        with pytest.raises(StagedRowsError, match=f"differ from what it reported: expected {len(sizes)} messages"):
            check_rows([staged(tmp_path / "wrong", wrong, len(sizes))])
    for count in (len(sizes) - 1, len(sizes) + 1):
        with pytest.raises(StagedRowsError, match=f"differ from what it reported: expected {count} messages"):
            check_rows([rows._replace(messages=count)])
        with pytest.raises(sej.CorruptionError, match=f"{count} messages were staged here"):
            for _ in renumbered([rows._replace(messages=count)], 0):
                pass
    with pytest.raises(StagedRowsError, match=r"differ from what it reported: expected .* checksum 00000000"):
        check_rows([rows._replace(crc32c=0)])


def test_the_owner_of_an_orphan_is_alive() -> None:
    """Its parent is now the first process of the system, or of the container, which has no parent."""
    (told, tell), (answers, answer) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                os.close(tell)
                os.read(told, 1)  # until its parent has ended
                os.write(answer, b"gone" if Owner.here().is_gone(0) else b"alive")
        finally:
            os._exit(0)
    os.close(answer)
    os.waitpid(child, 0)
    os.write(tell, b"!")
    assert os.read(answers, 10) == b"alive"
    for fd in (told, tell, answers):
        os.close(fd)
