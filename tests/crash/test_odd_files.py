"""Files that are not files: nothing waits for them, loops on them, or reads gigabytes of zeros."""

import itertools
import os
import random
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import hub
import kestrel
import sej
import shard
from tests.crash.harness import bounded
from textqueue import TextQueue

SPARSE_BYTES = 3 << 30
MEMORY_BYTES = 200 << 20


def fifo(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def circle(path: Path) -> None:
    path.symlink_to(path)


def listener(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{here}/{path.name}")  # the name alone: a socket's path has room for 108 bytes
    os.close(here)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


ODD: dict[str, Callable[[Path], object]] = {
    "dangling": dangling,
    "circle": circle,
    "fifo": fifo,
    "socket": listener,
    "directory": lambda path: path.mkdir(),
    "device": device,
    "sparse": sparse,
}
NO_FILES = ["dangling", "circle", "fifo", "socket", "directory", "device"]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "j"
    with sej.Writer(path, segment_bytes=3000) as w:
        w.append_once("batch", 1, [b"once"])
        w.append_many([b"v%03d" % n * 10 for n in range(99)])
    with sej.Offset(path, "reader") as kept:
        kept.commit(5)
    with sej.open_queue(path, "jobs", create=True) as q:
        (item,) = q.get_many(1, timeout=0)
        item.done()
    for folder in ("gaps", "txn"):
        (path / folder).mkdir(exist_ok=True)
    return path


def last(folder: str) -> Callable[[Path], Path]:
    return lambda path: sorted((path / folder).iterdir())[-1]


PLACES: dict[str, Callable[[Path], Path]] = {
    "the last segment": last("jnl"),
    "a middle segment": lambda path: sorted((path / "jnl").iterdir())[1],
    "the last index": last("idx"),
    "a reader's offset": lambda path: path / "ofs" / "reader.ofs",
    "its twin": lambda path: path / "ofs" / "reader.check",
    "its lock": lambda path: path / "ofs" / "reader.lck",
    "its note": lambda path: path / "ofs" / "reader.tries",
    "a queue's offset": lambda path: path / "ofs" / "jobs.ofs",
    "a queue's log": lambda path: path / "ofs" / "jobs.queue",
    "a queue's lock": lambda path: path / "ofs" / "jobs.queue.lck",
    "a gap": lambda path: path / "gaps" / f"{7:016x}.gap",
    "a batch": lambda path: path / "txn" / "batch.done",
    "an intent": lambda path: path / "txn" / "batch.intent",
    "a merge": lambda path: path / "txn" / "merge",
    "a repair": lambda path: path / "txn" / "repair",
    "the identity": lambda path: path / "id",
    "the writer's lock": lambda path: path / "jnl.lck",
    "the readers' lock": lambda path: path / "ofs" / ".lock",
}


def append(path: Path) -> int:
    with sej.Writer(path) as w:
        w.append_once("batch", 1, [b"once"])
        return w.append(b"x")


def scan(path: Path) -> int:
    return sum(1 for _ in sej.Scanner(path, timeout=0, verify=True))


def consume(path: Path) -> int:
    return sej.Consumer(path, "reader", timeout=0).run(lambda message: None)


def work(path: Path) -> object:
    with sej.open_queue(path, "jobs") as q:
        return q.get_many(5, timeout=0)


USES: dict[str, Callable[[Path], object]] = {
    "Scanner": scan,
    "Writer": append,
    "end_offset": lambda path: sej.Journal(path).end_offset,
    "verify": lambda path: sej.Journal(path).verify(),
    "Offset": lambda path: sej.Offset(path, "reader").value,
    "Consumer": consume,
    "open_queue": work,
    "clean": lambda path: sej.Journal(path).clean(max_bytes=1),
    "repair": lambda path: sej.Journal(path).repair(),
    "id": lambda path: sej.Journal(path).id,
}
MUST_NAME = {
    *((place, use) for place in ("the last segment",) for use in ("Scanner", "Writer", "end_offset", "verify")),
    *(("a middle segment", use) for use in ("Scanner", "verify")),
    *(("a reader's offset", use) for use in ("Offset", "Consumer", "clean")),
    *((place, "open_queue") for place in ("a queue's offset", "a queue's log", "a queue's lock")),
    *((place, "Writer") for place in ("the last index", "a batch", "an intent", "the writer's lock")),
    ("the identity", "id"),
}
"""Where something that is not a file must be refused; elsewhere it may not be looked at."""


MAY_BE_MISSING = {"a batch", "the identity"}
"""At these places a missing file is allowed, and a dangling link counts as a missing file."""


def use(pristine: Path, folder: Path, kind: str, place: str, name: str) -> None:
    path = folder / "j"
    shutil.copytree(pristine, path)
    odd = PLACES[place](path)
    odd.unlink(missing_ok=True)
    ODD[kind](odd)
    before = os.lstat(odd)
    ended = bounded(lambda: USES[name](path))
    case = kind, place, name, ended
    assert ended.memory_bytes < MEMORY_BYTES, case
    if ended.kinds:
        assert "SejError" in ended.kinds, case
        assert str(odd) in ended.text or place == "a middle segment", case
    missing = kind in ("dangling", "circle") and place in MAY_BE_MISSING
    if kind in NO_FILES and (place, name) in MUST_NAME and not missing:
        assert "expected a regular file" in ended.text, case
        assert os.lstat(odd).st_ino == before.st_ino, case
    shutil.rmtree(path)


@pytest.mark.parametrize(("place", "name"), sorted(MUST_NAME))
def test_what_is_not_a_file_is_named(pristine: Path, tmp_path: Path, place: str, name: str) -> None:
    for kind in ("dangling", "fifo") if place.endswith("segment") else ("fifo",):
        use(pristine, tmp_path, kind, place, name)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        *(("the last index", name) for name in ("Writer", "Scanner", "verify")),
        ("a reader's offset", "Offset"),
        ("the identity", "id"),
        ("a gap", "repair"),
        ("a batch", "Writer"),
        ("its note", "Consumer"),
    ],
)
def test_gigabytes_of_zeros_are_not_read(pristine: Path, tmp_path: Path, place: str, name: str) -> None:
    use(pristine, tmp_path, "sparse", place, name)


@pytest.mark.parametrize("name", ["Writer", "verify", "Scanner"])
def test_zeros_after_a_sound_index_are_not_read(pristine: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "j"
    shutil.copytree(pristine, path)
    os.truncate(last("idx")(path), SPARSE_BYTES)
    ended = bounded(lambda: USES[name](path))
    assert not ended.kinds, ended
    assert ended.memory_bytes < MEMORY_BYTES


@pytest.mark.torture
def test_anything_anywhere(pristine: Path, tmp_path: Path, torture_s: float) -> None:
    """In an order by chance, for as long as there is time; gigabytes in a segment take a minute each."""
    cases = [
        (kind, place, name)
        for kind in ODD
        for place in PLACES
        for name in USES
        if torture_s > 60 or kind != "sparse" or "segment" not in place
    ]
    random.Random(os.environ.get("SEJ_SEED")).shuffle(cases)
    deadline = time.monotonic() + torture_s
    for case in cases:
        use(pristine, tmp_path, *case)
        if time.monotonic() > deadline:
            break


@pytest.mark.parametrize("kind", NO_FILES)
def test_every_package_refuses_what_is_not_a_file(tmp_path: Path, kind: str) -> None:
    """The other packages' files, which all go through the same seam."""
    (tmp_path / "jobs.tq").write_text("-one\n")
    use_all(tmp_path)

    def drain() -> int:
        with TextQueue(tmp_path / "jobs.tq") as q, sej.Writer(tmp_path / "to") as w:
            return q.drain_to(w)

    def export() -> object:
        with sej.Writer(tmp_path / "from") as w:
            return kestrel.export(tmp_path / "spool", "cars", w)

    sej.Writer(tmp_path / "from").close()
    uses: list[tuple[Path, Callable[[], object]]] = [
        (tmp_path / "hub" / ".merge" / "r.json", lambda: hub.Merge(tmp_path / "hub", "r").close()),
        (tmp_path / ".jobs.tq.log", drain),
        (tmp_path / ".jobs.tq.drain", drain),
        (tmp_path / "from" / "cars.exported", export),
    ]
    for path, act in uses:
        path.unlink(missing_ok=True)
        ODD[kind](path)
        ended = bounded(act)
        assert "SejError" in ended.kinds, (path, ended)
        assert "expected a regular file" in ended.text
        assert str(path) in ended.text
        path.rmdir() if kind == "directory" else path.unlink()
    record = tmp_path / "tree" / ".shards" / "o.1"
    record.unlink()
    ODD[kind](record)
    ended = bounded(lambda: [problem.kind for problem in shard.check(tmp_path / "tree")])
    assert "record" in ended.text, ended


def use_all(root: Path, top: str = "") -> None:
    """Write to files of every kind below the folder, or to those at and next to one path; errors are tolerated."""
    tree = shard.Path(root / "tree", "o", 1)

    def queue() -> None:
        with sej.open_queue(root / "j", "jobs", max_attempts=1) as q:
            q.put_many([b"a", b"b"])
            for item in q.get_many(2, timeout=0):
                item.fail("broken")

    def append() -> None:
        with sej.Writer(root / "j", segment_bytes=300) as w:
            w.append_many([bytes(100)] * 5)
            w.append_once("producer", 1 + w.offset, [b"once"])

    def commit() -> None:
        with sej.Offset(root / "j", "reader") as o:
            o.commit(1)

    def put_shards() -> None:
        with shard.Writer(tree) as w:
            w.append_many([b"v"] * 4, [b"a", b"b", b"c", b"d"])

    def put_hub() -> None:
        with hub.Store(root / "hub", min_free_bytes=0) as store:
            store.put("a", "j", [sej.Message(store.end_offset("a", "j"), 1, 0, b"", b"v")])

    def merge_hub() -> None:
        with hub.Merge(root / "hub", "r") as merge:
            list(merge)
            merge.commit()

    def put_kestrel() -> None:
        with kestrel.Queue(root / "spool", "cars") as cars:
            cars.put(b"red")
        with kestrel.segmented.Queue(root / "spool", "bikes") as bikes:
            bikes.put(b"red")

    def work_text() -> None:
        with TextQueue(root / "jobs.tq") as q:
            q.append("more")
            claim = q.take()
            assert claim is not None
            claim.done()
            q.archive(root / "done.txt")

    def handle_shards() -> None:
        shard.Worker(tree, "w").run(lambda index, message: None, timeout=0)

    acts: dict[str, list[Callable[[], object]]] = {
        "j": [queue, append, commit, lambda: sej.Journal(root / "j").clean(max_bytes=0)],
        "tree": [put_shards, handle_shards],
        "hub": [put_hub, merge_hub],
        "spool": [put_kestrel],
        "jobs.tq": [work_text],
    }
    for act in acts[top] if top in acts else [act for each in acts.values() for act in each]:
        with suppress(Exception):
            act()


def content_of(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
    }


@pytest.mark.filterwarnings("ignore")
def test_a_planted_link_leads_no_write_elsewhere(tmp_path: Path) -> None:
    """Every file and folder below the paths that the user passes, replaced by a link to a copy and to other text."""
    base, root, away = tmp_path / "base", tmp_path / "root", tmp_path / "away"
    (base / "tree").mkdir(parents=True)
    (base / "jobs.tq").write_text("-one\n")
    use_all(base)
    passed = {"j", "tree", "hub", "spool", "jobs.tq", "done.txt"}
    names = [path.relative_to(base) for path in sorted(base.rglob("*")) if str(path.relative_to(base)) not in passed]
    assert len(names) > 60
    followed = []
    for name, copied in itertools.product(names, (True, False)):
        if not copied and (base / name).is_dir():
            continue
        for folder in (root, away):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(base, root)
        away.mkdir()
        (root / name).rename(away / "target")
        if not copied:
            (away / "target").write_bytes(b"a file of another user\n")
        (root / name).symlink_to(away / "target")
        before = content_of(away)
        use_all(root, name.parts[0])
        if content_of(away) != before:
            followed.append((str(name), copied))
    assert followed == []


def test_a_path_that_begins_with_a_tilde_is_refused_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    doors: list[Callable[[str], object]] = [
        sej.Writer, sej.SharedWriter, sej.Scanner, sej.Journal, sej.open_queue, TextQueue, hub.Store,
        lambda path: sej.Offset(path, "r"), lambda path: kestrel.Queue(path, "q"),
        lambda path: shard.Writer(shard.Path(path, "o", 1)), lambda path: sej.open_queue(path, backend="textqueue"),
    ]  # fmt: skip
    for path in ("~", "~/jobs.tq", "~root/x"):
        for door in doors:
            with pytest.raises(ValueError, match=r"begins with '~', .*os\.path\.expanduser\('~"):
                door(path)
    assert os.listdir(tmp_path) == []
    with sej.Writer(os.path.expanduser("./~")):
        assert os.listdir(tmp_path) == ["~"]
