"""A file system on a block device of our own: made, mounted, and taken down again, whatever becomes of the test.

What it needs, :func:`missing` says. :class:`Guard` is a process that waits until its pipe closes, then unmounts and
removes everything. The pipe closes when the test is over, fails, is interrupted or is killed: one path for all of them.
"""

import functools
import json
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.crash.rig.medium import Mark, Record, Subset, develop, marks, read_log

HERE: Final = Path(__file__).parent
PATIENCE_S: Final = 120.0


class FileSystem(NamedTuple):
    """How one is made and mounted.

    Attributes:
        type: as ``mount -t`` calls it.
        size_bytes: of the device.
        make: the command, without the image.
        options: as ``mount -o`` takes them.
    """

    type: str
    size_bytes: int
    make: Sequence[str]
    options: str = ""


FILE_SYSTEMS: Final = {
    "ext4": FileSystem("ext4", 64 << 20, ("mkfs.ext4", "-q", "-F", "-b", "4096")),
    "ext4-nodelalloc": FileSystem("ext4", 64 << 20, ("mkfs.ext4", "-q", "-F", "-b", "4096"), "nodelalloc"),
    "xfs": FileSystem("xfs", 320 << 20, ("mkfs.xfs", "-q", "-f")),
    "btrfs": FileSystem("btrfs", 160 << 20, ("mkfs.btrfs", "-q", "-f")),
}
_PACKAGES: Final = {"mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs", "mkfs.btrfs": "btrfs-progs"}
_CAP_SYS_ADMIN: Final = 21


@functools.cache
def missing(name: str) -> str | None:
    """The first thing that the rig lacks here for a file system; None: it runs."""
    return _missing_anywhere() or _missing_for(FILE_SYSTEMS[name])


@functools.cache
def _missing_anywhere() -> str | None:
    if os.name != "posix" or os.geteuid() != 0:
        return "root"
    with suppress(OSError, StopIteration, ValueError):
        status = Path("/proc/self/status").read_text().splitlines()
        effective = next(line for line in status if line.startswith("CapEff:")).split()[1]
        if not int(effective, 16) >> _CAP_SYS_ADMIN & 1:
            return "the capability CAP_SYS_ADMIN, which mounting needs"
    for device in ("/dev/fuse", "/dev/loop-control"):
        try:
            os.close(os.open(device, os.O_RDWR))
        except OSError as error:
            return f"{device} ({error.strerror})"
    for program, package in (("gcc", "gcc"), ("pkg-config", "pkg-config"), ("mount", "mount"), ("losetup", "mount")):
        if shutil.which(program) is None:
            return f"{program} (apt-get install {package})"
    if subprocess.run(["pkg-config", "--exists", "fuse3"], capture_output=True, check=False).returncode:
        return "the headers of FUSE 3 (apt-get install libfuse3-dev)"
    return None


def _missing_for(system: FileSystem) -> str | None:
    if shutil.which(system.make[0]) is None:
        return f"{system.make[0]} (apt-get install {_PACKAGES[system.make[0]]})"
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "-q", system.type], capture_output=True, check=False)
    known = Path("/proc/filesystems").read_text().split()
    return None if system.type in known else f"{system.type} in this kernel"


def run(*words: str | Path) -> str:
    """Run a program; what it printed.

    Raises:
        OSError: it failed; with what it wrote on its error output.
    """
    command = [str(word) for word in words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def compile_device(folder: Path) -> Path:
    """The program of device.c."""
    program = folder / "device"
    flags = run("pkg-config", "--cflags", "--libs", "fuse3").split()
    run("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, HERE / "device.c", *flags)
    return program


def scratch() -> Path:
    """Where images are made: in memory if there is such a place."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


# Everything is in "$1": the mount points cut, fs and device, images, the log. A loop device goes with its mount.
# Paths are absolute, because umount takes the name of a mounted device too, and several rigs may run concurrently.
_GUARD: Final = """
cd "$1" || exit 1
"$2" image log device 2>said &
program=$!
exec >&-
cat >/dev/null
echo -n ok >device/control
for place in cut fs device; do
    while umount -l "$PWD/$place"; do :; done
done
kill "$program"
wait "$program"
cd /
rm -rf --one-file-system "$1"
"""


class Guard:
    """Starts the device, and takes everything down when it is closed or this process ends in whatever way."""

    def __init__(self, folder: Path, program: Path) -> None:
        """Return when the device is there."""
        self._child = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", folder, program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt from the keyboard is not for this one
        )
        assert self._child.stdout is not None
        if self._child.stdout.readline() != b"ready\n":
            said = (folder / "said").read_text()
            self.close()
            raise OSError(f"the device did not start: {said}")

    def close(self) -> None:
        """Take everything down; a second time does nothing."""
        with suppress(OSError):
            self._child.communicate(timeout=PATIENCE_S)


class Machine:
    """A device, and a file system on it that is mounted at :attr:`path`.

    Attributes:
        path: where the file system is mounted.
        marks: the file that takes marks.
    """

    def __init__(self, name: str, program: Path, before: Self | None = None) -> None:
        """Mount a new file system, or the one that a power cut of the machine before has left."""
        self._system = FILE_SYSTEMS[name]
        self._folder = Path(tempfile.mkdtemp(prefix="sej-rig-", dir=scratch()))
        self.path = self._folder / "fs"
        self.marks = self._folder / "device" / "marks"
        self._base = self._folder / "base"
        for place in ("fs", "device", "cut"):
            (self._folder / place).mkdir()
        try:
            if before is None:
                with self._base.open("wb") as file:
                    file.truncate(self._system.size_bytes)
                run(*self._system.make, self._base)
            else:
                (before._folder / "left").rename(self._base)
            run("cp", "--sparse=always", self._base, self._folder / "image")
        except BaseException:
            shutil.rmtree(self._folder)
            raise
        self._guard = Guard(self._folder, program)
        try:
            self.mount()
        except BaseException:
            self.close()
            raise

    def mount(self) -> None:
        """Mount the file system of the device."""
        self._mount(self._folder / "device" / "disk", self.path)

    def _mount(self, image: Path, place: Path) -> None:
        options = ",".join(filter(None, ("loop", self._system.options)))
        run("mount", "-t", self._system.type, "-o", options, image, place)

    def unmount(self) -> None:
        """Unmount it: what the page cache holds is gone, whether the device took it or not."""
        run("umount", self.path)

    def control(self, command: str) -> None:
        """Let the device fail; see device.c for the commands."""
        _write(self._folder / "device" / "control", command)

    def mark(self, word: str, **about: Any) -> None:
        """Write a mark into the log of the device."""
        tell(self.marks, word, **about)

    def is_writable(self) -> bool:
        """Whether the file system still takes files: after an error in its own metadata it does not."""
        probe = self.path / "probe"
        try:
            with probe.open("wb") as file:
                file.write(b"probe")
                file.flush()
                os.fsync(file.fileno())
            probe.unlink()
        except OSError:
            return False
        return True

    def log(self) -> list[Record]:
        """What the device has logged until now."""
        return list(read_log((self._folder / "log").read_bytes()))

    def stop(self) -> None:
        """Unmount the file system for good: two with one identity are never mounted together."""
        self.control("ok")
        run("umount", "-l", self.path)

    def leave(self, log: Sequence[Record], subset: Subset, dice: random.Random) -> None:
        """Keep what a power cut at the end of the log leaves, for the machine that comes after this one."""
        develop(self._base, log, len(log), subset, dice, self._folder / "left")

    def log_size(self) -> int:
        """How much the device has logged until now, bytes."""
        return (self._folder / "log").stat().st_size

    @contextmanager
    def after_cut(self, log: Sequence[Record], end: int, subset: Subset, dice: random.Random) -> Iterator[Path]:
        """The file system after a power cut before record ``end`` of the log, mounted; after :meth:`stop` only."""
        image, place = self._folder / "cut.image", self._folder / "cut"
        develop(self._base, log, end, subset, dice, image)
        self._mount(image, place)
        try:
            yield place
        finally:
            run("umount", "-l", place)
            image.unlink()

    def close(self) -> None:
        """Take everything down."""
        self._guard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tell(path: Path, word: str, **about: Any) -> None:
    """Write a mark; it is in the log when this returns, after every write that returned before."""
    _write(path, json.dumps({"word": word, **about}))


def _write(path: Path, text: str) -> None:
    data = text.encode()
    file = os.open(path, os.O_WRONLY)
    try:
        assert os.write(file, data) == len(data)
    finally:
        os.close(file)


def said(log: Sequence[Record], end: int) -> list[Mark]:
    """The marks before record ``end``."""
    return [mark for mark in marks(log) if mark.at < end]
