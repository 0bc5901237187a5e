"""sej shard ls, check, reshard and work, as programs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path as FilePath

import pytest

import sej
import shard
from shard.cli import tree_of

ROOT = FilePath(__file__).resolve().parent.parent.parent
# As an installed package contributes it; pyproject.toml says the same, see below.
CODE = """
import sys
from sej.cli.app import app, run
from shard.cli import app as contributed
app.add_command(contributed)
sys.exit(run())
"""
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def command(*words: str | FilePath) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CODE, "shard", *map(str, words)],
        env=ENV,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.fixture
def path(tmp_path: FilePath) -> shard.Path:
    path = shard.Path(tmp_path / "root", "orders", 2)
    keys = [b"key %d" % number for number in range(40)]
    with shard.Writer(path) as writer:
        writer.append_many(keys, keys)
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


def test_ls(path: shard.Path, tmp_path: FilePath) -> None:
    done = command("ls", path.root)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [f"orders.2.00{index}" for index in range(4)]
    rows = [json.loads(line) for line in command("ls", "--json", "--reader", "w", path.root).stdout.splitlines()]
    assert sum(row["end_offset"] for row in rows) == 40 == sum(row["lag_messages"] for row in rows)
    assert rows[1]["index"] == 1
    assert command("ls", tmp_path / "missing").returncode == 4


def test_check(path: shard.Path) -> None:
    assert command("check", path.root).returncode == 0
    FilePath(path.root, "notes").mkdir()
    done = command("check", path.root)
    assert done.returncode == 1
    assert "foreign directory" in done.stdout
    assert json.loads(command("check", "--json", path.root).stdout)["kind"] == "foreign directory"


def test_reshard(path: shard.Path) -> None:
    done = command("reshard", f"{path.root}/orders.2", f"{path.root}/moved.4")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("40 messages in ")
    with shard.Scanner(shard.Path(path.root, "moved", 4)) as scanner:
        assert len(list(scanner)) == 40
    with sej.Writer(path.dir(0)):
        assert command("reshard", f"{path.root}/orders.2", f"{path.root}/again.4").returncode == 3
    assert command("reshard", f"{path.root}/orders.2", f"{path.root}/a b.4").returncode == 2


def test_work_runs_a_command_for_each_message(path: shard.Path, tmp_path: FilePath) -> None:
    out = tmp_path / "out"
    script = f'echo "$SEJ_SHARD $SEJ_OFFSET $SEJ_KEY=$(cat)" >> {out}'
    done = command("work", "--timeout", "0", f"{path.root}/orders.2", "w", "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    assert len(lines) == 40
    for line in lines:
        key, value = line.split(" ", 2)[2].split("=")
        assert key == value
        assert path.index(key.encode()) == int(line.split()[0])
    dead = tmp_path / "dead"
    words = ["--timeout", "0", "--max-attempts", "1"]
    done = command("work", *words, f"{path.root}/orders.2", "x", "--", "false")
    assert done.returncode == 1
    assert "failed on this message" in done.stderr
    done = command("work", *words, "--dead-letter", dead, f"{path.root}/orders.2", "x", "--", "false")
    assert done.returncode == 0
    assert sej.Journal(dead).end_offset == 40


def test_work_ends_by_sigterm(path: shard.Path) -> None:
    words = ["shard", "work", f"{path.root}/orders.2", "w", "--", "cat"]
    with subprocess.Popen([sys.executable, "-c", CODE, *words], env=ENV, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.read(4) == b"key "
        running.send_signal(signal.SIGTERM)
        running.stdout.read()
        assert running.wait(60) == 0
