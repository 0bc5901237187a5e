from pathlib import Path

import pytest

import sej
from sej.codec import encode


def rows(first: int, count: int) -> bytes:
    return b"".join(encode(first + i, i, 0, b"k", b"v%d" % i) for i in range(count))


def test_encoded_batch_is_appended_once(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        writer.append(b"before")
        assert writer.end.append_once_encoded("job", 3, [rows(1, 2), rows(3, 1)]) == range(1, 4)
        assert writer.end.append_once_encoded("job", 3, [b"never looked at"]) == range(1, 4)
        assert (writer.end.last_batch("job"), writer.end.last_batch("other"), writer.offset) == (3, None, 4)
        assert writer.end.append_once_encoded("job", 4, []) == range(4, 4)
    with sej.Scanner(tmp_path) as scanner:
        assert [message.value for message in scanner] == [b"before", b"v0", b"v1", b"v0"]


def test_wrong_offsets_are_refused_before_anything_is_appended(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        with pytest.raises(sej.DecodeError):
            writer.end.append_once_encoded("job", 0, [rows(0, 2), rows(7, 1)])
        assert writer.offset == 0
        assert writer.end.append_once_encoded("job", 0, [rows(0, 2)]) == range(2)


def test_rotate_starts_a_segment_unless_it_is_empty(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        writer.end.rotate()
        writer.append(b"a")
        writer.end.rotate()
        writer.end.rotate()
        writer.append(b"b")
    assert [segment.first_offset for segment in sej.Journal(tmp_path).segments] == [0, 1]
