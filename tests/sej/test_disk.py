"""The seam to the real disk: writes are whole, names are synced, descriptors do not leak."""

import errno
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

import sej
from sej.system.disk import (
    OS,
    Mode,
    OsDisk,
    OsFile,
    file_system,
    network_file_system,
    open_existing,
    replace_file,
)
from tests.sej.interrupts import open_below


def test_modes_say_what_must_exist(tmp_path: Path) -> None:
    path = tmp_path / "file"
    missing: list[Mode] = ["read", "edit"]
    for mode in missing:
        with pytest.raises(FileNotFoundError):
            OS.open(path, mode)
    OS.open(path, "new").close()
    with pytest.raises(FileExistsError):
        OS.open(path, "new")
    file = OS.open(path, "append")
    file.write(b"one")
    file.write(b"two")
    file.close()
    file = OS.open(path, "append")
    file.write(b"three")
    assert file.read(100, 0) == b"onetwothree", "every write goes to the end"
    file.close()
    file = OS.open(path, "edit")
    file.write_at(b"TWO", 3)
    assert file.read(8, 3) == b"TWOthree" and file.status().size == 11
    file.truncate(4)
    assert file.read(100, 0) == b"oneT"
    file.close()
    file.close()
    file = OS.open(path, "temp")
    assert file.status().size == 0
    file.close()


def test_a_created_file_is_closed_if_its_name_cannot_be_synced(tmp_path: Path) -> None:
    class Failing(OsDisk):
        def sync_dir(self, path: str | os.PathLike[str]) -> None:
            raise OSError(errno.EIO, "the directory cannot be synced", path)

    modes: list[Mode] = ["new", "append"]
    for mode in modes:
        with pytest.raises(OSError, match="synced") as raised:
            Failing().open(tmp_path / mode, mode)
        assert raised.traceback and open_below(tmp_path) == []


def test_an_error_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = OS.open(tmp_path / "file", "append")
    with file.closing():
        for call in ("fdatasync", "fsync", "ftruncate"):
            monkeypatch.setattr(os, call, fail)
        with pytest.raises(OSError, match=re.escape(f"Input/output error: '{tmp_path}'")):
            OS.sync_dir(tmp_path)
        with pytest.raises(OSError, match=re.escape(f"Input/output error: '{file.path}'")):
            file.truncate(0)
        with pytest.raises(OSError, match=re.escape(f"Input/output error: '{file.path}'")):
            file.sync()


def test_reading_gives_fewer_only_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(200)))
    file = OS.open(tmp_path / "file", "read")
    assert file.read(50, 190) == bytes(range(190, 200)) and file.read(5, 300) == b""
    memory = bytearray(20)
    assert file.read_into(memoryview(memory), 195) == 5 and memory[:5] == bytes(range(195, 200))
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"x")
    file.close()


def test_directories_are_synced_after_create_rename_and_unlink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OS
    seen: list[str] = []
    monkeypatch.setattr("sej.system.disk.os.fsync", lambda fd: seen.append(os.readlink(f"/proc/self/fd/{fd}")))

    def synced() -> set[str]:
        found = {os.path.relpath(path, tmp_path) for path in seen}
        seen.clear()
        return found

    disk.mkdir(tmp_path / "a" / "b", parents=True)
    assert synced() == {".", "a"}
    disk.mkdir(tmp_path / "a" / "b")
    assert synced() == set()
    disk.open(tmp_path / "a" / "x", "new").close()
    assert synced() == {"a"}
    disk.open(tmp_path / "a" / "x", "append").close()
    assert synced() == set(), "it was there"
    disk.open(tmp_path / "a" / "y", "append").close()
    assert synced() == {"a"}
    disk.open(tmp_path / "a" / "t", "temp").close()
    assert synced() == set()
    disk.rename(tmp_path / "a" / "t", tmp_path / "a" / "b" / "t")
    assert synced() == {"a", "a/b"}
    disk.unlink(tmp_path / "a" / "x")
    assert synced() == {"a"}
    disk.unlink(tmp_path / "a" / "x")
    assert synced() == set()
    replace_file(disk, tmp_path / "a" / "tmp", tmp_path / "a" / "b" / "kept", b"data")
    assert synced() == {"a", "a/b"}
    assert (tmp_path / "a" / "b" / "kept").read_bytes() == b"data"
    disk.unlink(tmp_path / "a" / "b" / "t")
    disk.unlink(tmp_path / "a" / "b" / "kept")
    disk.rmdir(tmp_path / "a" / "b")
    assert synced() >= {"a"}


def test_a_file_is_replaced_whole_and_the_old_one_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    os.link(tmp_path / "kept", tmp_path / "temporary")  # as a crash inside a rename may leave it
    with open(tmp_path / "kept", "rb") as reader:
        replace_file(OS, tmp_path / "temporary", tmp_path / "kept", b"new and longer")
        assert reader.read() == b"old"
    assert (tmp_path / "kept").read_bytes() == b"new and longer"
    assert OS.list(tmp_path) == ["kept"]


def test_a_call_that_fails_says_where(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    readable, writable = (OsFile(os.open(path, mode), str(path)) for mode in (os.O_RDONLY, os.O_WRONLY))
    calls: list[tuple[str, Callable[[], object]]] = [
        ("Bad file", lambda: readable.write(b"y")),
        ("Bad file", lambda: readable.write_at(b"y", 0)),
        ("position 7", lambda: writable.read(10, 7)),
        ("position 7", lambda: writable.read_into(memoryview(bytearray(10)), 7)),
    ]
    for where, call in calls:
        with pytest.raises(OSError, match=where) as caught:
            call()
        assert caught.value.errno == errno.EBADF and caught.value.filename == str(path)
    for file in (readable, writable):
        file.close()


def test_every_descriptor_is_closed_on_exec(tmp_path: Path) -> None:
    modes: list[Mode] = ["new", "read", "edit", "append", "temp"]
    for mode in modes:
        file = OS.open(tmp_path / "file", mode)
        assert not os.get_inheritable(file.fileno())
        file.close()
        assert file.fileno() == -1


def test_a_forgotten_file_is_closed(tmp_path: Path) -> None:
    file = OS.open(tmp_path / "file", "new")
    fd = file.fileno()
    assert os.fstat(fd)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_closed_file_is_refused_by_the_system(tmp_path: Path) -> None:
    file = OS.open(tmp_path / "file", "new")
    file.close()
    for call in (
        file.size,
        file.extent,
        file.status,
        lambda: file.write(b"x"),
        lambda: file.write_at(b"x", 0),
        file.lock,
        lambda: file.lock(exclusive=False, wait=True),
    ):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()
    file.unlock()
    file.close()


def test_a_signal_handler_may_end_the_wait_for_a_lock(tmp_path: Path) -> None:
    one, two = (OS.open(tmp_path / "file", "append") for _ in range(2))
    assert one.lock()

    def end(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is OsFile.lock.__code__:
            raise InterruptedError

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        with pytest.raises(InterruptedError):
            two.lock(wait=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    one.close()
    assert two.lock()
    two.close()


def test_a_network_file_system_is_refused_unless_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = str(tmp_path.resolve())
    mounts = [("/", "ext4"), (real, "nfs4"), (real + "/deep", "ext4")]
    table = "".join(f"22 1 0:21 / {point} rw,relatime - {kind} none rw\n" for point, kind in mounts)
    monkeypatch.setattr("sej.system.disk._mount_table", table.encode)
    monkeypatch.setattr(os, "major", lambda device: 0)
    monkeypatch.setattr("sej.system.disk._local_devices", set())
    assert network_file_system(tmp_path / "j") == "nfs4"
    with pytest.raises(sej.NetworkFileSystemError, match=r"file system nfs4 is not .* SEJ_LOCAL_FS=nfs4") as raised:
        sej.Writer(tmp_path / "j")
    assert raised.value.path == str(tmp_path / "j") and not (tmp_path / "j").exists()
    sej.Writer(tmp_path / "j", allow_network_fs=True).close()
    monkeypatch.setenv("SEJ_LOCAL_FS", "virtiofs,nfs4")
    sej.open_queue(tmp_path / "q").close()
    monkeypatch.setattr("sej.system.disk._local_devices", set())
    monkeypatch.delenv("SEJ_LOCAL_FS")
    assert network_file_system(tmp_path / "j") == "nfs4"
    assert network_file_system(tmp_path / "deep" / "j") is None


LOCAL = ["btrfs", "zfs", "overlay", "tmpfs", "fuse.fuse-overlayfs"]
UNKNOWN = ["9p", "virtiofs", "vboxsf", "gpfs", "fuse.gcsfuse", "fuse.juicefs", "fuse.mountpoint-s3", "fuse", "new"]


@pytest.mark.parametrize("kind", LOCAL + UNKNOWN)
def test_only_known_file_systems_are_local(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = f"21 1 254:1 / / rw - ext4 /dev/root rw\n22 21 0:21 / /not-there rw - {kind} none rw\n"
    monkeypatch.setattr("sej.system.disk._mount_table", table.encode)
    monkeypatch.setattr(os, "major", lambda device: 0)
    monkeypatch.setattr("sej.system.disk._local_devices", set())
    assert network_file_system("/not-there/j") == (kind if kind in UNKNOWN else None)


def test_a_path_that_does_not_exist_is_on_the_file_system_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "away")
    if os.major(os.stat(tmp_path).st_dev):
        monkeypatch.setattr("sej.system.disk._mount_table", lambda: b"22 1 0:21 / / rw - new none rw\n")
    assert network_file_system(tmp_path / "link" / "not" / "there") is None


def test_the_file_system_has_a_name() -> None:
    assert file_system("/proc") == "proc"
    assert network_file_system("/proc") == "proc"


def test_mount_points_of_any_bytes_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = (
        b"22 1 254:1 / / rw shared:1 - ext4 /dev/root rw\n"
        b"31 22 0:27 / /odd\x0c\xc2\x85\xff rw - tmpfs none rw\n"
        b"32 22 0:28 / /mnt/a\\040b\\012\\134040 rw - nfs4 host:/x rw\n"
    )
    monkeypatch.setattr("sej.system.disk._mount_table", lambda: table)
    assert file_system(tmp_path) == "ext4"
    assert file_system(os.fsdecode(b"/odd\x0c\xc2\x85\xff/j")) == "tmpfs"
    assert file_system("/mnt/a b\n\\040/j") == "nfs4"
    assert file_system("/mnt/a b") == "ext4"


def test_after_a_failed_sync_no_sync_of_the_open_file_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the kernel does it: the error is reported once, and the next call returns as if the bytes were stored."""
    calls = 0

    def once(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError(errno.EIO, "as the kernel reports it")

    file = OS.open(tmp_path / "file", "append")
    monkeypatch.setattr(os, "fdatasync", once)
    for _ in range(2):
        with pytest.raises(OSError, match=r"Errno 5\b"):
            file.sync()
    assert calls == 1
    file.close()
    again = OS.open(tmp_path / "file", "append")
    again.sync()
    again.close()


def test_of_two_threads_that_sync_neither_succeeds_if_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives the error to one of two calls that run at the same time."""
    file = OS.open(tmp_path / "file", "append")
    errors: list[int | None] = []
    inside = threading.Lock()

    def failing(fd: int) -> None:
        assert inside.acquire(blocking=False), "a second sync began"
        other.start()
        inside.release()
        raise OSError(errno.EIO, "for one call only")

    def sync() -> None:
        try:
            file.sync()
        except OSError as error:
            errors.append(error.errno)

    other = threading.Thread(target=sync)
    monkeypatch.setattr(os, "fdatasync", failing)
    sync()
    other.join()
    file.close()
    assert errors == [errno.EIO, errno.EIO]


def test_what_root_creates_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """For another user it shows nothing: only root can give files away."""
    owner = 65534 if os.geteuid() == 0 else os.geteuid()
    os.chown(tmp_path, owner, -1)
    with sej.open_queue(tmp_path / "jobs", "worker", segment_bytes=100, compact_bytes=100, max_attempts=1) as q:
        q.put_many([b"%d" % number for number in range(50)])
        for item in q.get_many(50):
            item.fail("broken")
    with sej.Offset(tmp_path / "jobs", "reader") as kept:
        kept.commit(50)
    there = [tmp_path, *tmp_path.rglob("*")]
    assert len(there) > 30
    assert [path for path in there if path.stat().st_uid != owner] == []


def test_what_root_finds_keeps_its_owner(tmp_path: Path) -> None:
    """A file that another program has created is not given away."""
    (tmp_path / "there").write_text("secret")
    mine = (tmp_path / "there").stat().st_uid
    os.chown(tmp_path, 65534 if os.geteuid() == 0 else -1, -1)
    for mode in ("append", "temp"):
        OS.open(tmp_path / "there", mode).close()
    with pytest.raises(FileExistsError):
        OS.open(tmp_path / "there", "new")
    assert (tmp_path / "there").stat().st_uid == mine


def test_no_call_follows_a_link(tmp_path: Path) -> None:
    away, here = tmp_path / "away", tmp_path / "here"
    away.mkdir()
    here.mkdir()
    (away / "file").write_bytes(b"of another user")
    (here / "file").symlink_to(away / "file")
    (here / "folder").symlink_to(away)
    (here / "mine").write_bytes(b"mine")
    modes: list[Mode] = ["read", "edit", "append", "new", "temp"]
    acts: list[tuple[str, Callable[[], object]]] = [
        *[("file", partial(OS.open, here / "file", mode)) for mode in modes if mode != "new"],
        *[("folder", partial(OS.open, here / "folder" / "file", mode)) for mode in modes if mode != "new"],
        ("folder", lambda: OS.open(here / "folder" / "x", "new")),
        ("folder", lambda: OS.mkdir(here / "folder" / "x")),
        ("folder", lambda: OS.mkdir(here / "folder" / "x" / "y", parents=True)),
        ("folder", lambda: OS.rename(here / "mine", here / "folder" / "file")),
        ("folder", lambda: OS.rename(here / "folder" / "file", here / "mine")),
        ("folder", lambda: OS.unlink(here / "folder" / "file")),
        ("folder", lambda: OS.rmdir(here / "folder" / "x")),
        ("folder", lambda: OS.sync_dir(here / "folder")),
        ("file", lambda: open_existing(OS, str(here / "file"), "read")),
    ]
    for name, act in acts:
        with pytest.raises(
            sej.FileTypeError, match=r"this is a symbolic link to .* that you pass; move it away"
        ) as raised:
            act()
        assert raised.value.path == str(here / name)
    OS.rename(here / "mine", here / "file")  # a link as the target itself is replaced
    assert (here / "file").read_bytes() == b"mine"
    OS.unlink(here / "file")
    assert os.listdir(away) == ["file"] and (away / "file").read_bytes() == b"of another user"
    assert open_below(tmp_path) == []


WITHOUT_RIGHTS = """
import ctypes, os, sys
for capability in (1, 2, 3):  # DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: not after exec
program = "import sys, sej\\nfor _ in range(2):\\n    with sej.Writer(sys.argv[1]) as w: print(w.append(b'v'))"
os.execv(sys.executable, [sys.executable, "-c", program, *sys.argv[1:]])
"""


def test_root_keeps_what_it_could_not_use_any_more(tmp_path: Path) -> None:
    """As in a service without the capability to pass over permissions. For another user it shows nothing."""
    os.chown(tmp_path, 65534 if os.geteuid() == 0 else -1, -1)
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RIGHTS, tmp_path / "jobs"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "0\n1\n", done.stderr


# --- memory that the C library keeps: freed blocks are used again without page faults


PROGRAM = """
from resource import RUSAGE_SELF, getrusage
from sej.system.process import keep_freed_memory

kept = keep_freed_memory(1 << 23, 1 << 25, 2)
bytearray(1 << 22)
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(1 << 22)
print(kept, getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_blocks_are_used_again_without_page_faults() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    kept, faults = output.split()
    assert kept == str(platform.libc_ver()[0] == "glibc")
    assert kept == "False" or int(faults) < 512  # one block has 1024 pages
