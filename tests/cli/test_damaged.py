"""Whatever is wrong with the files: no traceback, an exit code that is documented, a sentence that names the file."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import hub
import sej as library
from tests.cli.inside import inside

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
GAP = f"{0:016x}.gap"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal in four segments, with a reader, and a queue that has done, retried and delayed items."""
    path = tmp_path_factory.mktemp("pristine") / "journal"
    with library.Writer(path, segment_bytes=2000) as writer:
        for number in range(200):
            writer.append(b"value %d" % number, timestamp=10**18 + number)
        writer.append(b"\xff", "ключ".encode(), 255)
        writer.append(b"", b"", 0, library.NO_TIMESTAMP)
    (path / "schema.json").write_text('{"schema": "id int", "format": "json", "definition": null}')
    with library.Offset(path, "reader") as kept:
        kept.commit(50)
    with library.open_queue(path) as queue:
        for end in ("retry", "done"):
            item = queue.get(timeout=0)
            assert item is not None
            getattr(item, end)()
        queue.put(b"late", delay_s=1000)
    return path


def segments(journal: Path) -> list[Path]:
    return sorted((journal / "jnl").glob("*.jnl"))


def overwrite(path: Path, at: int, data: bytes) -> None:
    old = path.read_bytes()
    path.write_bytes(old[:at] + data + old[at + len(data) :])


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def shred_queue(journal: Path) -> None:
    for path in (journal / "ofs").iterdir():
        if path.is_file() and path.name.startswith("queue.") and path.suffix not in (".ofs", ".lck"):
            path.write_bytes(bytes(range(200)))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda j: None,
    "torn tail": lambda j: os.truncate(segments(j)[-1], segments(j)[-1].stat().st_size - 3),
    "a flipped byte": lambda j: overwrite(segments(j)[0], 60, b"\xff"),
    "a broken first offset": lambda j: overwrite(segments(j)[0], 0, b"\xff" * 8),
    "a broken middle": lambda j: overwrite(segments(j)[1], 500, b"\xff" * 100),
    "a broken last segment": lambda j: overwrite(segments(j)[-1], 0, b"\xff" * 30),
    "a shredded segment": lambda j: segments(j)[1].write_bytes(bytes(range(256)) * 20),
    "a missing segment": lambda j: segments(j)[1].unlink(),
    "an empty segment": lambda j: os.truncate(segments(j)[1], 0),
    "a zeroed segment": lambda j: segments(j)[-1].write_bytes(bytes(4000)),
    "a directory as segment": lambda j: replace_by_directory(segments(j)[1]),
    "a foreign file": lambda j: (j / "jnl" / "notes.txt").touch(),
    "a name beyond the largest offset": lambda j: (j / "jnl" / f"{'f' * 16}.jnl").touch(),
    "no jnl": lambda j: shutil.rmtree(j / "jnl"),
    "jnl is a file": lambda j: replace_by_file(j / "jnl"),
    "ofs is a file": lambda j: replace_by_file(j / "ofs"),
    "idx is a file": lambda j: write(j / "idx", b"x") if not (j / "idx").exists() else replace_by_file(j / "idx"),
    "a shredded index": lambda j: [path.write_bytes(bytes(range(200))) for path in (j / "idx").glob("*")],
    "half a gap": lambda j: write(j / "gaps" / GAP, b'{"start": '),
    "a gap of another kind": lambda j: write(j / "gaps" / GAP, b"[]"),
    "a short offset": lambda j: write(j / "ofs" / "reader.ofs", bytes(3)),
    "an offset beyond the end": lambda j: write(j / "ofs" / "reader.ofs", (10**6).to_bytes(8, "big")),
    "an offset below zero": lambda j: write(j / "ofs" / "reader.ofs", b"\xff" * 8),
    "a queue's short offset": lambda j: write(j / "ofs" / "queue.ofs", bytes(3)),
    "a queue's offset beyond the end": lambda j: write(j / "ofs" / "queue.ofs", (10**6).to_bytes(8, "big")),
    "a shredded queue log": shred_queue,
    "a shredded batch": lambda j: write(j / "txn" / "batch.intent", b"{"),
    "a shredded repair": lambda j: write(j / "txn" / "repair", b"[1]"),
    "a short id": lambda j: write(j / "id", b"short"),
    "a directory as lock": lambda j: replace_by_directory(j / "jnl.lck"),
    "shredded dead letters": lambda j: write(j / "dead" / "queue" / "jnl" / f"{0:016x}.jnl", b"junk" * 20),
}
J, ROOT, FIRST, SECOND, LAST = "J", "ROOT", "FIRST", "SECOND", "LAST"
LOOKING = [
    ["count", "--json", J],
    ["scan", "--json", J],
    ["scan", "--start", "2001-09-09 01:46:41", J],
    ["tail", "-n", "1000", "--json", J],
    ["dump", "--json", FIRST],
    ["dump", LAST],
    ["follow", "--json", "--timeout", "0", "--start", "0", J],
    ["follow", "--timeout", "0", J],
    ["offset", J],
    ["offset", "--json", J, "reader"],
    ["timestamp", "--json", J, "2001-09-09"],
    ["file", "--json", J, "70"],
    ["old", J],
    ["stat", "--json", J],
    ["stat", "--prometheus", J],
    ["stat", "--health", "--stuck-after", "0", J],
    ["top", "--once", "--json", J],
    ["verify", "--json", J],
    ["doctor", "--json", J],
    ["repair", "--json", "--dry-run", J],
    ["clean", "--dry-run", "--max-bytes", "1", J],
    ["queue", "dead", "--json", J],
    ["queue", "ls", "--json", J],
    ["queue", "show", "--json", J, "202"],
    ["queue", "peek", "--json", "--count", "3", J],
    ["queue", "stats", "--json", J],
    ["schema", "show", "--json", J],
    ["shard", "ls", "--json", ROOT],
    ["shard", "ls", "--reader", "reader", ROOT],
    ["shard", "check", ROOT],
    ["spark", "count", "--json", J],
]
CHANGING = [
    ["append", J],
    ["follow", "--timeout", "0", "--reader", "reader", J],
    ["reset", "--yes", J, "reader", "10"],
    ["reset", "--yes", J, "reader", "end"],
    ["reset", "--yes", "--remove", J, "reader"],
    ["repair", "--yes", "--json", J],
    ["clean", "--max-bytes", "1", J],
    ["index", J],
    ["queue", "get", J],
    ["queue", "put", J, "x"],
    ["queue", "redrive", J],
    ["queue", "purge", "--yes", J],
    ["kestrel", "import", "--drop-keys", ROOT, "cars", J],
]


def tree(path: Path) -> dict[str, bytes | None]:
    """Every file and directory; lock files may come, with their holder's name."""
    found = sorted(one for one in path.rglob("*") if one.suffix != ".lck")
    return {str(one): None if one.is_dir() else one.read_bytes() for one in found}


def judge(monkeypatch: pytest.MonkeyPatch, words: list[str], journal: Path, named: list[Path]) -> int:
    places = dict(zip((FIRST, SECOND, LAST), map(str, (named[0], named[1], named[-1])), strict=True))
    places |= {J: str(journal), ROOT: str(journal.parent)}
    done = inside(monkeypatch, *(places.get(word, word) for word in words))
    assert done.code in (0, 1, 3, 4), (words, done)
    lines = done.err.splitlines()
    empty = done.code == 4 and words[:2] == ["queue", "get"]
    if done.code and words[0] not in ("verify", "doctor", "repair") and not done.out and not empty:
        assert lines, (words, done)
    if lines:
        assert lines[0].startswith("sej: "), (words, done)
        assert len(lines) <= 3, (words, done)
        assert str(journal.parent) in done.err, (words, done)
    for line in done.out.splitlines() if "--json" in words else ():
        assert isinstance(json.loads(line), dict), (words, line)
    return done.code


@pytest.mark.parametrize("damage", DAMAGES)
def test_looking_at_damage_is_calm_and_changes_nothing(
    damage: str, pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = tmp_path / "journal"
    shutil.copytree(pristine, journal)
    named = segments(journal)
    DAMAGES[damage](journal)
    before = tree(journal)
    for words in LOOKING:
        code = judge(monkeypatch, words, journal, named)
        assert code == 0 or damage != "nothing", words
    assert tree(journal) == before


@pytest.mark.parametrize("damage", DAMAGES)
def test_changing_what_is_damaged_is_calm(
    damage: str, pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, words in enumerate(CHANGING):
        journal = tmp_path / str(number) / "journal"
        shutil.copytree(pristine, journal)
        named = segments(journal)
        DAMAGES[damage](journal)
        judge(monkeypatch, words, journal, named)


@pytest.mark.parametrize("data", [b"", b"no mark\n", b"\x00\xff\n", b"\x11\n", b"\x07" * 100, bytes(range(256)) * 4])
def test_text_queues(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.tq"
    for looking in (
        ["next"],
        ["list", "--json"],
        ["check"],
        ["check", "--json"],
        ["follow", "--timeout", "0"],
        ["claim", "--json"],
    ):
        path.write_bytes(data)
        done = inside(monkeypatch, "tq", *looking, path)
        assert done.code in (0, 1, 4), (looking, done)
        assert path.stat().st_size == len(data)
    for command, *more in (["done", "0:00000000"], ["drain", tmp_path / "j"], ["archive", tmp_path / "to"]):
        path.write_bytes(data)
        assert inside(monkeypatch, "tq", str(command), path, *more).code in (0, 1, 4)


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, bytes(range(256)) * 4, bytes.fromhex("27642603") + b"\xff" * 50])
def test_kestrel(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cars").write_bytes(data)
    looking: list[list[str | Path]] = [["dump", tmp_path / "cars"], ["dump", "--json", tmp_path / "cars"]]
    looking.append(["state", tmp_path, "cars"])
    for words in looking:
        done = inside(monkeypatch, "kestrel", *words)
        assert done.code in (0, 1), (words, done)
        assert done.code == 0 or str(tmp_path / "cars") in done.err
    more: list[list[str | Path]] = [["dump", tmp_path], ["state", "--segmented", tmp_path, "cars"]]
    more.append(["pack", tmp_path, "cars"])
    for words in more:
        assert inside(monkeypatch, "kestrel", *words).code in (0, 1, 2, 4)


@pytest.mark.parametrize("damage", ["a shredded segment", "a missing segment", "no jnl", "jnl is a file"])
def test_a_hub_with_a_damaged_client(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "hub"
    with hub.Store(root) as store:
        for client in ("EWR", "JFK"):
            store.put(client, "flights", [library.Message(n, n + 1, 0, b"", b"x" * 40) for n in range(50)])
    for number in range(1, 4):  # more segments, so that each damage has its file
        (root / "EWR.flights" / "jnl" / f"{50 * number:016x}.jnl").touch()
    DAMAGES[damage](root / "EWR.flights")
    for words in (["ls"], ["ls", "--json"], ["clean", "--dry-run", "--max-bytes", "1"]):
        done = inside(monkeypatch, "hub", words[0], *words[1:], root)
        assert done.code in (0, 1, 4), (words, done)
        assert done.code == 0 or str(root) in done.err
    assert b"JFK.flights" in inside(monkeypatch, "hub", "ls", root).out


@pytest.mark.parametrize(
    "words",
    [
        *(["count"], ["scan"], ["tail"], ["offset"], ["file"], ["old"], ["stat"], ["verify"], ["doctor"], ["repair"]),
        *(["top", "--once"], ["index"], ["clean", "--max-bytes", "1"], ["follow"], ["spark", "count"]),
        *(["queue", "stats"], ["queue", "get"], ["queue", "dead"], ["queue", "redrive"], ["queue", "purge"]),
        *(["hub", "ls"], ["hub", "merge"], ["hub", "clean", "--max-bytes", "1"], ["shard", "ls"], ["shard", "check"]),
    ],
    ids=" ".join,
)
def test_a_path_that_is_not_a_journal(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"text")
    done = inside(monkeypatch, *words, tmp_path / "missing")
    assert (done.code, done.out) == (4, b"")
    assert str(tmp_path / "missing") in done.err
    assert inside(monkeypatch, *words, tmp_path / "file").code in (1, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"text"
