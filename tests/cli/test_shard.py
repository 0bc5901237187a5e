"""sej shard ls, check, reshard and work, and their errors."""

import json
import signal
from pathlib import Path

import pytest

import sej as library
import shard
from shard.cli import tree_of
from tests.cli.command import sej, start

KEYS = [b"key %d" % number for number in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> shard.Path:
    path = shard.Path(tmp_path / "root", "orders", 2)
    with shard.Writer(path) as writer:
        writer.append_many(KEYS, KEYS)
    return path


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


def test_ls(path: shard.Path, tmp_path: Path) -> None:
    done = sej("shard", "ls", path.root).stdout.decode()
    assert [line.split("\t")[0] for line in done.splitlines()] == [f"orders.2.00{index}" for index in range(4)]
    rows = [json.loads(line) for line in sej("shard", "ls", "--json", "--reader", "w", path.root).stdout.splitlines()]
    assert sum(row["end_offset"] for row in rows) == 40 == sum(row["lag_messages"] for row in rows)
    assert rows[1]["index"] == 1
    assert sej("shard", "ls", tmp_path / "missing").returncode == 4


def test_check(path: shard.Path) -> None:
    assert sej("shard", "check", path.root).returncode == 0
    Path(path.root, "notes").mkdir()
    done = sej("shard", "check", path.root)
    assert (done.returncode, b"foreign directory" in done.stdout) == (1, True)
    assert json.loads(sej("shard", "check", "--json", path.root).stdout)["kind"] == "foreign directory"


def test_reshard(path: shard.Path) -> None:
    done = sej("shard", "reshard", f"{path.root}/orders.2", f"{path.root}/moved.4")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"40 messages in ")
    with shard.Scanner(shard.Path(path.root, "moved", 4)) as scanner:
        assert len(list(scanner)) == 40
    with library.Writer(path.dir(0)):
        assert sej("shard", "reshard", f"{path.root}/orders.2", f"{path.root}/again.4").returncode == 3
    assert sej("shard", "reshard", f"{path.root}/orders.2", f"{path.root}/a b.4").returncode == 2


def test_work_runs_a_program_for_each_message(path: shard.Path, tmp_path: Path) -> None:
    out, dead = tmp_path / "out", tmp_path / "dead"
    script = f'echo "$SEJ_SHARD $SEJ_OFFSET $SEJ_KEY=$(cat)" >> {out}'
    work = ["shard", "work", "--timeout", "0", "--max-attempts", "1"]
    done = sej(*work, f"{path.root}/orders.2", "w", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    assert len(lines) == 40
    for line in lines:
        key, value = line.split(" ", 2)[2].split("=")
        assert key == value
        assert path.index(key.encode()) == int(line.split()[0])
    done = sej(*work, f"{path.root}/orders.2", "x", "--", "false")
    assert done.returncode == 1
    assert b"false: exit code 1" in done.stderr and b"failed on this message" in done.stderr
    assert sej(*work, "--dead-letter", dead, f"{path.root}/orders.2", "x", "--", "false").returncode == 0
    assert library.Journal(dead).end_offset == 40
    assert sej(*work, f"{path.root}/orders.2", "x", "--", "./no-such-program").returncode == 2
    assert sej("shard", "work", "--max-atempts", "1", f"{path.root}/orders.2", "x", "--", "cat").returncode == 2


def test_the_sharded_journals_that_exist_are_named(path: shard.Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    for wrong in ("root/orders", "root/orders.3", "root", "orders.2"):
        done = sej("shard", "work", "--timeout", "0", tmp_path / wrong, "mailer", "--", "cat")
        assert (done.returncode, b"this sharded journal has no shard" in done.stderr) == (4, True)
        assert done.stderr.endswith(b"root has orders.2\n") == ("/" in wrong)
    done = sej("shard", "work", tmp_path / "none" / "orders.2", "mailer", "--", "cat")
    what = f"sej: {tmp_path / 'none'}: the path does not exist; shard.Writer creates the root\n"
    assert (done.returncode, done.stderr.decode()) == (4, what)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_worker_that_starts_before_its_tree_and_ends_by_sigterm(tmp_path: Path) -> None:
    with start("shard", "work", tmp_path / "orders.2", "mailer", "--", "cat") as running:
        assert b"waiting for the first" in running.stderr.readline()
        with shard.Writer(shard.Path(tmp_path, "orders", 2)) as writer:
            writer.append(b"one", b"key")
        assert running.stdout.read(3) == b"one"
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
