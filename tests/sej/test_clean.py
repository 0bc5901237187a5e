"""Opening a clean journal by the compiled call: it finds what the reference finds, and leaves the rest to it."""

import fcntl
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.index import Block, IndexFile
from sej.journal.medium import kept_position
from sej.journal.writer_lock import writer_lock
from sej.system.checksum import crc32c
from sej.system.disk import OS, File, OsFile, file_system
from sej.system.durable import KeptPosition
from sej.system.durable_format import BODY, CHECK, MAGIC
from sej.system.locks import Lock
from sej.writing import clean, opening
from sej.writing.overlap import open_mended_end
from sej.writing.taking import take_end
from tests.sej.hooks import output
from tests.sej.interrupts import SwallowedError, interrupt, locked_below, open_below, places
from tests.sej.support import read_all, values

SEGMENT = "jnl/0000000000000000.jnl"
INDEX = "idx/0000000000000000.idx"
DURABLE = "idx/durable"
RANDOM_CASES = 60
pytestmark = pytest.mark.skipif(clean._take is None, reason="needs the compiled module")
Change = Callable[[Path], object]


def make(path: Path, lengths: tuple[int, ...] = (5, 100, 7), segment_bytes: int = 1 << 30) -> Path:
    """A journal that was opened and closed twice; two of the same arguments have the same bytes, except for times."""
    for n in range(2):
        with sej.Writer(path, segment_bytes=segment_bytes) as w:
            for length in lengths:
                w.append(b"%d" % n * length, b"key", timestamp=1000 + w.offset)
    identity = b"an id of 16 byte"
    (path / "id").write_bytes(identity + crc32c(identity).to_bytes(4, "big"))
    return path


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each opening was done by the compiled call."""
    found: list[bool] = []
    take = clean._take
    assert take is not None

    def noted(*arguments: object) -> object:
        result = take(*arguments)  # type: ignore[arg-type]
        found.append(result is not None)
        return result

    monkeypatch.setattr(clean, "_take", noted)
    monkeypatch.setattr("sej.journal.writer_lock._DYING_S", 0.0)
    return found


def opened(path: Path) -> object:
    """What an opening finds and leaves, without what differs from one journal to another."""
    directory = Directory(path, OS)
    kept, lock = kept_position(directory), writer_lock(directory)
    try:
        opening.prepare(directory, allow_network_fs=True)  # so that the compiled call decides on tmpfs too
        end = take_end(directory, kept, lock, 0, 0.0)
    except Exception as error:
        lock.release()
        return type(error), without_times(str(error).replace(str(path), "")), files(path), open_below(path)
    try:
        found = (
            end._replace(segment=None, file=None, index_file=None),  # type: ignore[arg-type]
            os.path.relpath(end.segment.path, path),
            end.segment.path == end.file.path,
            end.file.size(),
            os.path.relpath(end.index_file.path, path),
            known(kept, end.file),
            held(lock, path),
            locked_below(path),
            open_below(path),
        )
    finally:
        end.index_file.close()
        end.file.close()
        lock.release()
    return *(without_times(str(each).replace(str(path), "")) for each in found), files(path)


def known(kept: KeptPosition, file: File) -> object:
    of = kept._of
    return kept.lost, of and (of.file is file, of.inode == file.status().inode, of.head, of.position)


def held(lock: Lock, path: Path) -> object:
    there = os.stat(path / "jnl.lck")
    signed = (path / "jnl.lck").read_bytes()
    return (
        lock.held,
        lock.is_current(),
        lock._identity == (there.st_dev, there.st_ino),
        lock._signature == signed,
        lock.original and lock.original.certain,
        lock.undisturbed,
    )


def without_times(text: str) -> str:
    """A text without what a lock file, the name of a kept tail or a trace of an original has of the time."""
    return re.sub(r"start=[^\s']*|\d{8}T\d{6}Z|original=\d+|at=\d+", "", text)


def files(path: Path) -> dict[str, object]:
    """The files below a directory with their content."""
    found: dict[str, object] = {}
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            if file.is_file():
                data = file.read_bytes()
                if name == "durable":
                    data = data[:16] + data[24:44]  # without the inode and its checksum
                if name == "id":
                    data = data[:4] if data.startswith(b"an id") else b"%d bytes" % len(data)
                key = without_times(os.path.relpath(file, path))
                found[key] = without_times(data.decode("latin-1")) if name == "jnl.lck" else data
    return found


def check(tmp_path: Path, change: Change, taken: list[bool], **options: object) -> bool:
    """Compare both ways on two journals with the same change; whether the compiled call was enough."""
    path = make(tmp_path / "compiled", **options)  # type: ignore[arg-type]
    taken.clear()
    found = changed(path, change)
    enough = taken == [True]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clean, "_take", None)
        patch.setattr(opening, "_is_prepared", None)
        assert found == changed(make(tmp_path / "reference", **options), change)  # type: ignore[arg-type]
    return enough


def changed(path: Path, change: Change) -> object:
    """What an opening finds after a change, which may return how to end it."""
    end = change(path)
    try:
        return opened(path)
    finally:
        if callable(end):
            end()


def write(name: str, data: bytes, at: int | None = None) -> Change:
    """Write bytes into a file: from a position on, or as the whole file."""

    def change(path: Path) -> None:
        before = (path / name).read_bytes() if at is not None else b""
        (path / name).parent.mkdir(exist_ok=True)
        start = (at or 0) % (len(before) + 1)
        (path / name).write_bytes(before[:start] + data + before[start + len(data) :])

    return change


def flip(name: str, at: int) -> Change:
    def change(path: Path) -> None:
        data = bytearray((path / name).read_bytes())
        data[at] ^= 1
        (path / name).write_bytes(data)

    return change


def cut(name: str, size: int) -> Change:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size - size)


def remove(name: str) -> Change:
    return lambda path: os.unlink(path / name)


def replace(name: str) -> Change:
    """Replace a file by a directory."""

    def change(path: Path) -> None:
        os.unlink(path / name)
        os.mkdir(path / name)

    return change


def swap(name: str) -> Change:
    """Replace a file by a FIFO."""

    def change(path: Path) -> None:
        os.unlink(path / name)
        os.mkfifo(path / name)

    return change


def lock(name: str) -> Change:
    """Hold a lock of another process."""

    def change(path: Path) -> Callable[[], None]:
        file = open(path / name, "rb")  # noqa: SIM115
        fcntl.flock(file, fcntl.LOCK_EX)
        return file.close

    return change


def record(position: int, offset: int, name: int = 0) -> Change:
    """Store another durable position; numbers from 0 down are counted from the end."""

    def change(path: Path) -> None:
        segment = os.stat(path / SEGMENT)
        end = position if position > 0 else segment.st_size + position
        head = crc32c((path / SEGMENT).read_bytes()[: min(end, 64)])
        body = BODY.pack(MAGIC, name, segment.st_ino, end, offset, head)
        (path / DURABLE).write_bytes(body + CHECK.pack(crc32c(body)))

    return change


def copied(path: Path) -> None:
    """Replace the segment by a copy with another inode."""
    os.rename(path / SEGMENT, path / "kept")
    (path / SEGMENT).write_bytes((path / "kept").read_bytes())


def merged(path: Path) -> None:
    """Join the first two segments, as a merge that was interrupted and whose marker is lost."""
    first, second = sorted((path / "jnl").iterdir())[:2]
    first.write_bytes(first.read_bytes() + second.read_bytes())


def index_each(path: Path) -> None:
    """Give each message an entry, so that the index has more than 4 KiB."""
    directory = Directory(path, OS)
    data, blocks, position = (path / SEGMENT).read_bytes(), [], 0
    for message in read_all(path):
        end = position + 26 + len(message.key) + len(message.value)
        crc, time = crc32c(data[position:end]), message.timestamp
        blocks.append(Block(position, end, message.offset, 1, crc, time, time, time))
        position = end
    index = IndexFile(directory, directory.segments()[0])
    index.write(blocks, 0)
    index.close()


CLEAN: dict[str, tuple[Change, dict[str, object]]] = {
    "as it was closed": (lambda _: None, {}),
    "two segments": (lambda _: None, {"segment_bytes": 300}),
    "many segments": (lambda _: None, {"segment_bytes": 100, "lengths": (5, 100, 7, 80, 3)}),
    "a merge without its marker": (merged, {"segment_bytes": 100, "lengths": (5, 100, 7, 80, 3)}),
    "batches that were completed": (write("txn/name.done", b"x"), {}),
    "a batch to complete": (write("txn/name.intent", b"x"), {}),
    "a last message that is longer than one read": (lambda _: None, {"lengths": (5, 3000)}),
    "a last block that is full": (lambda _: None, {"lengths": (1 << 18,)}),
    "an index of many entries": (index_each, {"lengths": (1, 2, 3, 4, 5, 6, 7, 8) * 8}),
    "an identity without a checksum": (write("id", b"x" * 16), {}),
    "no directory of readers": (lambda path: os.rmdir(path / "ofs"), {}),
    "other names in jnl": (write("jnl/0000000000000000.jnl.bak", b""), {}),
    "other names in tmp": (write("tmp/reader.ofs", b""), {}),
    "an empty directory of batches": (lambda path: os.mkdir(path / "txn"), {}),
    "some bytes after the index": (write(INDEX, b"rest", -1), {}),
    "some bytes after the durable position": (write(DURABLE, b"rest", -1), {}),
    "the mark of a shared writer": (write("jnl.lck", b"shared pid=1 host=a start=2026-11-26T10:00:00+00:00\n"), {}),
    "the line of a host with a long name": (write("jnl.lck", b"pid=1 host=" + b"h" * 200 + b"\n"), {}),
}
NOT_CLEAN: dict[str, Change] = {
    "no jnl": lambda path: os.rename(path / "jnl", path / "elsewhere"),
    "no identity": remove("id"),
    "a damaged identity": flip("id", 3),
    "a short identity": cut("id", 5),
    "an identity that is a directory": replace("id"),
    "no lock file": remove("jnl.lck"),
    "an empty lock file": write("jnl.lck", b""),
    "a large lock file": write("jnl.lck", b"x" * 300),
    "zeros in the lock file": write("jnl.lck", b"pid=1\0\n"),
    "an original's trace": lambda path: write("jnl.lck", b"pid=1\noriginal=%d\n" % 2**33)(path),
    "a lock file that is a directory": replace("jnl.lck"),
    "a lock file that is a FIFO": swap("jnl.lck"),
    "a held lock file": lock("jnl.lck"),
    "a held segment": lock(SEGMENT),
    "a batch of a repair": write("txn/name~1.intent", b"x"),
    "a merge": write("txn/merge", b"x"),
    "a repair": write("txn/repair", b"x"),
    "a file in the place of the batches": write("txn", b""),
    "staged rows": write("tmp/name.1.rows", b""),
    "a staged segment": write("tmp/0000000000000000.publish", b""),
    "a segment that is being removed": write("tmp/removed", b""),
    "a staged repair": write("tmp/repair.0000000000000000", b""),
    "no segment": remove(SEGMENT),
    "an empty last segment": write("jnl/0000000000000006.jnl", b""),
    "a segment above the largest offset": write("jnl/8000000000000000.jnl", b""),
    "a torn tail": cut(SEGMENT, 3),
    "a torn message after the end": write(SEGMENT, b"\0\0\0\0\0\0\0\6\1\1\1", -1),
    "no index": remove(INDEX),
    "an index of another version": flip(INDEX, 11),
    "a damaged entry": flip(INDEX, 40),
    "a cut index": cut(INDEX, 1),
    "an empty index": write(INDEX, b""),
    "an index that is a directory": replace(INDEX),
    "no durable position": remove(DURABLE),
    "a damaged durable position": flip(DURABLE, 30),
    "a cut durable position": cut(DURABLE, 1),
    "a durable position before the end": record(70, 1),
    "a durable position after the end": record(5000, 9),
    "a durable position with another offset": record(0, 5),
    "a durable position of another segment": record(0, 6, 1),
    "a copy": copied,
    "another first message": flip(SEGMENT, 25),
    "another last offset": flip(SEGMENT, -29),
    "another last size": flip(SEGMENT, -1),
}


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_journal_is_opened_by_the_compiled_call_as_by_the_reference(
    tmp_path: Path, taken: list[bool], name: str
) -> None:
    change, options = CLEAN[name]
    assert check(tmp_path, change, taken, **options)


@pytest.mark.parametrize("name", NOT_CLEAN)
def test_another_journal_is_left_to_the_reference(tmp_path: Path, taken: list[bool], name: str) -> None:
    assert not check(tmp_path, NOT_CLEAN[name], taken)


def test_an_opening_on_a_common_file_system_reads_no_table_of_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    common = os.major(os.stat(tmp_path).st_dev) != 0 or file_system(tmp_path) in ("tmpfs", "overlay", "btrfs")
    tables = [b""]
    monkeypatch.setattr("sej.system.disk._mount_table", tables.pop)
    sej.Writer(tmp_path).close()
    assert bool(tables) is common


AUDITED = """if True:
    import sys, sej
    from sej.writing import clean
    seen = []
    sys.addaudithook(lambda event, values: event == "open" and seen.append(values[0]))
    for _ in range(2):
        sej.Writer(sys.argv[1]).close()
        print(*[path for path in seen if str(path).startswith(sys.argv[1])])  # a number: a new .pyc
        seen.clear()
        clean._take = None
"""


def test_an_audit_hook_sees_the_same_files(tmp_path: Path) -> None:
    compiled, reference = output(AUDITED, make(tmp_path)).splitlines()
    assert compiled == reference
    assert compiled.split() == [str(tmp_path / name) for name in ("jnl.lck", "id", SEGMENT, INDEX, DURABLE)]


def test_a_journal_with_random_changes_is_opened_as_by_the_reference(tmp_path: Path, taken: list[bool]) -> None:
    enough = 0
    for seed in range(RANDOM_CASES):
        rng = random.Random(seed)
        lengths = tuple(rng.choice((0, 1, 20, 300, 900, 1100, 5000)) for _ in range(rng.randint(1, 4)))
        changes = [random_change(rng) for _ in range(rng.randint(0, 2))]

        def change(path: Path) -> None:
            for each in changes:  # noqa: B023
                each(path)

        segment_bytes = rng.choice((30, 200, 1 << 30))
        enough += check(tmp_path / str(seed), change, taken, lengths=lengths, segment_bytes=segment_bytes)
    assert RANDOM_CASES / 6 < enough < RANDOM_CASES * 5 / 6


def random_change(rng: random.Random) -> Change:
    """Change a file that an opening looks at; which one depends on the files that there are."""
    pick, kind, at, size = rng.random(), rng.randrange(5), rng.random(), rng.choice((1, 4, 26, 64))

    def change(path: Path) -> None:
        seen = ("jnl", "idx", "idx", "id", "jnl.lck")
        names = sorted(name for name in files(path) if name.startswith(seen[int(pick * len(seen))]))
        if not names:
            return
        name = names[int(pick * 1000) % len(names)]
        length = (path / name).stat().st_size
        if kind == 0:
            remove(name)(path)
        elif kind == 1:
            cut(name, min(size, length))(path)
        elif kind == 2:
            write(name, b"\0" * size, -1)(path)
        elif length:
            flip(name, int(at * length))(path)

    return change


def test_an_opening_of_a_clean_journal_that_is_interrupted_leaves_no_lock(tmp_path: Path, taken: list[bool]) -> None:
    make(tmp_path)
    taken.clear()
    opened: list[sej.Writer] = []
    for place, kind in places(1, 3):
        reached, error = interrupt(lambda: opened.append(sej.Writer(tmp_path)), place, kind)
        for w in opened:
            w.close()
        opened.clear()
        if reached:
            assert type(error) in (kind, SwallowedError), (place, error)
        elif error is None:
            break
        assert locked_below(tmp_path) == open_below(tmp_path) == [], place
    assert place > 50 and all(taken)
    assert len(values(read_all(tmp_path))) == 6


def test_a_copy_of_the_lock_in_a_child_does_not_stop_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    remove(DURABLE)(tmp_path)
    take, copies = clean._take, []
    assert take is not None

    def forked_meanwhile(prefix: str, lock: OsFile, kind: type[OsFile]) -> object:
        found = take(prefix, lock, kind)
        copies.append(os.dup(lock.fileno()))
        return found

    monkeypatch.setattr(clean, "_take", forked_meanwhile)
    sej.Writer(tmp_path).close()
    os.close(copies.pop())


def test_a_copy_of_the_segment_in_a_child_does_not_stop_an_opening_that_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    lock_file = tmp_path / "jnl.lck"
    lock_file.write_bytes(b"")  # an original has closed
    copies: list[int] = []

    def forked_meanwhile(*arguments: object, **options: object) -> object:
        end = open_mended_end(*arguments, **options)  # type: ignore[arg-type]
        if not copies:
            copies.append(os.dup(end.file.fileno()))
            lock_file.unlink()  # the last step of the original's close
        return end

    monkeypatch.setattr("sej.writing.overlap.open_mended_end", forked_meanwhile)
    monkeypatch.setattr("sej.journal.writer_lock._DYING_S", 0.0)
    sej.Writer(tmp_path).close()
    os.close(copies.pop())
