"""sej shard ls, check, reshard and work, and their errors."""

import signal
from pathlib import Path

import pytest

import shard
from shard.cli import tree_of
from tests.cli.command import start


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("data/orders.3", shard.Path("data", "orders", 3)),
        ("/abs/data/orders.a/", shard.Path("/abs/data", "orders", 10)),
        ("data/3", shard.Path("data", "", 3)),
        ("orders", shard.Path(".", "orders", 0)),
    ],
)
def test_a_tree_by_its_name(text: str, path: shard.Path) -> None:
    assert tree_of(text) == path


def test_a_worker_that_starts_before_its_tree_and_ends_by_sigterm(tmp_path: Path) -> None:
    with start("shard", "work", tmp_path / "orders.2", "mailer", "--", "cat") as running:
        assert b"waiting for the first" in running.stderr.readline()
        with shard.Writer(shard.Path(tmp_path, "orders", 2)) as writer:
            writer.append(b"one", b"key")
        assert running.stdout.read(3) == b"one"
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
