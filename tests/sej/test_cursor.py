"""The cursor: a caller with little memory is asked before a large message is read."""

from pathlib import Path

import pytest

import sej
from sej.codec import decode_many
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.system.disk import OS


def test_a_large_message_is_read_only_if_there_is_room(tmp_path: Path) -> None:
    values = [b"a", b"b" * 10_000, b"c" * 3000, b"d" * 20_000]
    with sej.Writer(tmp_path) as writer:
        writer.append_many(values)
    asked: list[int] = []
    refuse = True

    def room(size: int) -> None:
        asked.append(size)
        if refuse:
            raise MemoryError

    cursor = Cursor(Directory(tmp_path, OS), 0, chunk_bytes=4096, room=room)
    found = cursor.read_encoded(1)[0]
    assert len(found) == 27
    for _ in range(2):
        with pytest.raises(MemoryError):
            cursor.read_encoded(1)
        assert cursor.due == 1
    refuse = False
    while (data := cursor.read_encoded(1)[0]) != b"":
        found += data
    cursor.close()
    assert asked == [10_026, 10_026, 10_026, 20_026]
    assert [message.value for message in decode_many(found, 0, len(found), 0, 10)[0]] == values
