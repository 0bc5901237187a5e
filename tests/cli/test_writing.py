"""sej append: lines become messages as they come."""

from pathlib import Path

import pytest

import sej as library
from tests.cli.command import sej, start


def values(path: Path) -> list[bytes]:
    with library.Scanner(path) as scanner:
        return [message.value for message in scanner]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\n\ntwo", [b"one", b"", b"two"]),
        (b"\xff\x00\r\n", [b"\xff\x00\r"]),
        (b"", []),
        (b"x" * 700_000 + b"\ny\n", [b"x" * 700_000, b"y"]),
    ],
)
def test_each_line_is_a_message(tmp_path: Path, data: bytes, expected: list[bytes]) -> None:
    done = sej("append", tmp_path / "j", stdin=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert values(tmp_path / "j") == expected
    assert sej("count", tmp_path / "j").stdout == b"%d\n" % len(expected)


def test_key_type_and_durability(tmp_path: Path) -> None:
    done = sej("append", "--key", "ä", "--type", "9", "--durability", "disk", tmp_path / "j", stdin=b"a\n")
    assert done.returncode == 0
    with library.Scanner(tmp_path / "j") as scanner:
        (message,) = scanner
    assert (message.key, message.type, message.value) == ("ä".encode(), 9, b"a")
    assert sej("append", "--type", "256", tmp_path / "j", stdin=b"a\n").returncode == 2
    assert sej("append", "--durability", "hope", tmp_path / "j").returncode == 2
    done = sej("append", "--key", "k" * 128, tmp_path / "j", stdin=b"a\n")
    assert done.returncode == 2
    assert b"127" in done.stderr


def test_a_line_is_there_before_the_pipe_ends(tmp_path: Path) -> None:
    with start("append", tmp_path / "j", stdin=True) as running:
        assert running.stdin is not None
        for number in range(3):
            running.stdin.write(b"line %d\n" % number)
            running.stdin.flush()
            while not (tmp_path / "j" / "jnl").exists():
                assert running.poll() is None
            with library.Scanner(tmp_path / "j", number, timeout=30) as scanner:
                assert next(iter(scanner)).value == b"line %d" % number
        running.stdin.close()
        assert running.wait(20) == 0


def test_a_held_journal_is_busy(tmp_path: Path) -> None:
    with library.Writer(tmp_path / "j"):
        done = sej("append", tmp_path / "j", stdin=b"a\n")
    assert done.returncode == 3
    assert b"jnl.lck" in done.stderr
    assert b"pid=" in done.stderr
    (tmp_path / "file").touch()
    assert sej("append", tmp_path / "file", stdin=b"a\n").returncode == 4


def test_values_that_say_their_length(tmp_path: Path) -> None:
    expected = [b"a\nb", b"", b"\xff" * 300_000]
    data = b"".join(len(value).to_bytes(4, "big") + value for value in expected)
    assert sej("append", "--length-prefixed", tmp_path / "j", stdin=data).returncode == 0
    assert values(tmp_path / "j") == expected
    done = sej("append", "--length-prefixed", tmp_path / "j", stdin=b"\0\0\0\1x\0\0\0\2y")
    assert (done.returncode, b"last 5 bytes" in done.stderr) == (2, True)
    assert values(tmp_path / "j") == [*expected, b"x"]


def test_the_name_of_a_sharded_journal_does_not_become_a_journal(tmp_path: Path) -> None:
    library.Writer(tmp_path / "orders.2.003").close()
    done = sej("append", tmp_path / "orders.2", stdin=b"a\n")
    assert (done.returncode, b"as in 'orders.2.003'" in done.stderr) == (4, True)
    assert not (tmp_path / "orders.2").exists()
