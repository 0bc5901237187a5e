"""Mistakes of a user at the command line: one sentence that names the way out, and nothing is changed."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import kestrel
import sej
from sej.cli.shared.command import text_of
from tests.cli.inside import inside


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a journal, a text queue, a Kestrel queue and an empty token file."""
    monkeypatch.chdir(tmp_path)
    with sej.Writer("orders") as writer:
        writer.append(b"one", b"key")
    Path("jobs.tq").write_bytes(b"-a\n")
    Path("token").touch()
    Path("empty").mkdir()
    with kestrel.Queue("spool", "cars"):
        pass
    return tmp_path


MISTAKES: dict[str, tuple[int, str]] = {
    "queue stats orders": (4, "this journal has no queue; create=True (`sej queue put --create`) creates it"),
    "queue show jobs.tq 0": (1, "`sej tq` list and change the messages of a .tq file"),
    "queue stats absent": (4, "absent: the queue does not exist; `sej queue put` creates it"),
    "worker orders absent:f": (2, "start the worker in the directory of this module, or set PYTHONPATH"),
    "offset orders absent": (4, "unknown reader 'absent'; this journal has no reader with a kept offset"),
    "clean --max-age 7 orders": (2, "'7' has no unit; expected 7s for seconds, 7h for hours or 7d for days"),
    "queue put --expire 1.5 orders x": (2, "'1.5' has no unit; expected 1.5s for seconds, 1.5h for hours or 1.5d"),
    "clean --max-age 1d --ignore-reader absent orders": (2, "unknown reader 'absent'; this journal has no reader"),
    "tail jobs.tq": (4, "this is a file; expected a SEJ directory; `sej tq` reads .tq files"),
    "kestrel ls orders/jnl/none": (4, "this directory does not exist"),
    "kestrel ls empty": (4, "empty: no queue has files in this directory; pass Kestrel's queue_path"),
    "kestrel state . spool": (4, "the directory holds no file of a queue 'spool'; check the name"),
    "kestrel dump spool": (4, "spool: this is a directory; `sej kestrel ls` lists its queues"),
    "kestrel import spool cars orders": (1, 'with keys="drop" (--drop-keys) to leave them out'),
    "hub push --client a --token-file token orders 127.0.0.1:1": (2, "token: this file holds no token; put the first"),
    "hub push --client a absent 127.0.0.1:1": (4, "absent: the path does not exist; expected a SEJ directory or a"),
    "hub push --client a --journal b spool 127.0.0.1:1": (4, "leave --journal (journal_dir) out to copy all of them"),
    "hub push --client a spool 127.0.0.1:1": (4, "has no journal; `--follow` waits for one"),
    "hub ls absent": (4, "absent: this directory does not exist; expected a hub's root, which `sej hub serve` creates"),
    "hub ls orders": (4, "this is a SEJ directory; expected a hub's root"),
    "hub ls jobs.tq": (4, "this is a file; expected a hub's root"),
    "hub ls spool": (4, "this is not a hub's root; pass the directory that `sej hub serve` serves"),
    "hub serve --address 127.0.0.1:0 orders": (4, "this is a SEJ directory; expected a hub's root"),
    "sql --token-file token --hub 127.0.0.1:1 SELECT EWR": (2, "token: this file holds no token; put the first line"),
    "hub token --write EWR --until 2020-01-01T00:00:00Z": (2, "--until must be in the future, got 2020-"),
    "worker orders os:listdir --time-limit 0s": (2, "sej: --time-limit must be more than 0 seconds, got 0.0"),
    "worker orders os:listdir --threads 1001": (2, "'--threads': 1001 is not in the range 1<=x<=1000"),
    "worker orders os:listdir --processes 1001": (2, "'--processes': 1001 is not in the range 1<=x<=1000"),
    "worker absent os:listdir": (4, "absent: the queue does not exist"),
    "worker absent os:listdir --processes 2": (4, "absent: the queue does not exist"),
    "worker jobs.tq os:listdir --wait": (2, "--wait is for queues on journals, not for textqueue"),
    "bench --only absent empty": (2, "no operation or call contains 'absent'"),
    "bench --value-bytes 100T empty": (2, "--value-bytes must be at most 256M, got 109951162777600"),
    "bench absent": (4, "absent: the directory does not exist; create it first"),
    **{
        f"spark {words}": (2, "'s3a://b/x' is on a file system of type s3a: pass a local path")
        for words in (
            "count s3a://b/x",
            "stats s3a://b/x",
            "compact s3a://b/x x",
            "finish s3a://b/x",
            "restore x s3a://b/x",
        )
    },
    **{
        f"spark {words}": (4, "absent: ")
        for words in ("count absent", "stats absent", "archive absent x", "restore absent x", "finish absent")
    },
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_names_the_way_out_and_changes_nothing(
    line: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents() -> dict[Path, bytes]:
        found = {path: path.read_bytes() for path in root.rglob("*") if path.is_file() and not path.match("*l*ck")}
        return dict.fromkeys(root.glob("[!.]*"), b"") | {path: data for path, data in found.items() if data}

    before = contents()
    done = inside(monkeypatch, *line.split())
    code, says = MISTAKES[line]
    assert (done.code, done.out) == (code, b"")
    assert says in done.err
    assert contents() == before


def test_doctor_knows_a_read_only_file_system(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.statvfs(root)
    flags = (*there[:8], there.f_flag | os.ST_RDONLY, there.f_namemax)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*flags, there.f_fsid)))
    done = inside(monkeypatch, "doctor", "orders")
    assert done.code == 1
    assert "the file system is read-only" in done.out.decode()
    assert "chown" not in done.out.decode()


def test_a_hub_that_could_store_nothing_does_not_start(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access

    def denied(path: Any, mode: int) -> bool:
        return str(path) != "collected" and access(path, mode)

    Path("collected").mkdir()
    monkeypatch.setattr(os, "access", denied)
    done = inside(monkeypatch, "hub", "serve", "--address", "127.0.0.1:0", "collected")
    assert done.code == 1
    assert "collected: this user may not" in done.err


@pytest.mark.parametrize(
    ("number", "way_out"),
    [(errno.ENOSPC, "free space on this disk; `sej clean` removes"), (errno.EROFS, "mount it for writing; until then")],
)
def test_a_disk_that_takes_no_bytes(number: int, way_out: str) -> None:
    assert text_of(OSError(number, os.strerror(number), "/a/b")).startswith(f"/a/b: {os.strerror(number)}; {way_out}")
    assert text_of(OSError(number, os.strerror(number))) == os.strerror(number), "standard output, which has no path"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_in_the_directory_of_this_one(tmp_path: Path) -> None:
    """To run as the owner of this file, the usual way out, would create more such files."""
    path = tmp_path / "r.lck"
    path.touch()
    os.chown(path, 54321, 54321)
    text = text_of(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)))
    assert text.endswith("it belongs to the user with id 54321, its directory to root: run `chown root` on it as root")
