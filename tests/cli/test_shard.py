"""sej shard work: its errors for a missing sharded journal, a missing program, and a program that fails."""

import signal
from pathlib import Path

import shard
from tests.cli.command import sej, start


def test_a_tree_that_is_not_there(tmp_path: Path) -> None:
    done = sej("shard", "work", "--timeout", "0", tmp_path / "orders.2", "mailer", "--", "cat")
    assert (done.returncode, b"this sharded journal has no shard" in done.stderr) == (4, True)
    assert list(tmp_path.iterdir()) == []


def test_the_sharded_journals_that_exist_are_named(tmp_path: Path) -> None:
    with shard.Writer(shard.Path(tmp_path / "data", "orders", 2)) as writer:
        writer.append(b"one", b"key")
    before = sorted(tmp_path.rglob("*"))
    for wrong in ("data/orders", "data/orders.3", "data"):
        done = sej("shard", "work", "--timeout", "0", tmp_path / wrong, "mailer", "--", "cat")
        assert (done.returncode, b"has no shard" in done.stderr) == (4, True)
        assert done.stderr.endswith(b"data has orders.2\n") or wrong == "data"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_worker_does_not_wait_for_a_root(tmp_path: Path) -> None:
    done = sej("shard", "work", tmp_path / "none" / "orders.2", "mailer", "--", "cat")
    what = f"sej: {tmp_path / 'none'}: the path does not exist; shard.Writer creates the root\n"
    assert (done.returncode, done.stderr.decode()) == (4, what)


def test_a_worker_that_starts_before_its_tree(tmp_path: Path) -> None:
    with start("shard", "work", tmp_path / "orders.2", "mailer", "--", "cat") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert b"waiting for the first" in running.stderr.readline()
        with shard.Writer(shard.Path(tmp_path, "orders", 2)) as writer:
            writer.append(b"one", b"key")
        assert running.stdout.read(3) == b"one"
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0


def test_a_program_that_fails(tmp_path: Path) -> None:
    with shard.Writer(shard.Path(tmp_path, "orders", 1)) as writer:
        writer.append(b"one", b"key")
    words: list[str | Path] = [
        "shard",
        "work",
        "--timeout",
        "0",
        "--max-attempts",
        "1",
        tmp_path / "orders.1",
        "mailer",
        "--",
    ]
    done = sej(*words, "false")
    assert done.returncode == 1
    assert b"false: exit code 1" in done.stderr
    assert sej(*words, "./no-such-program").returncode == 2
    assert sej("shard", "work", "--max-atempts", "1", tmp_path / "orders.1", "mailer", "--", "cat").returncode == 2
