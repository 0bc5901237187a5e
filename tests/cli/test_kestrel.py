"""sej kestrel and sej hub merge: the originals' files, and a hub's streams, from a shell."""

import json
import shutil
from pathlib import Path

import hub
import kestrel
import sej as library
from kestrel import segmented
from tests.cli.command import sej

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "kestrel"


def test_dump_and_state(tmp_path: Path) -> None:
    directory = GOLDEN / "all_opcodes" / "journal"
    names = {
        json.loads(line)["name"] for line in sej("kestrel", "dump", "--json", directory / "cars").stdout.splitlines()
    }
    assert {"ADDX", "REMOVE", "SAVE_XID"} <= names
    rows = [json.loads(line) for line in sej("kestrel", "state", "--json", directory, "cars").stdout.splitlines()]
    state = kestrel.replay(directory, "cars")
    assert len(rows) == len(state.items) + len(state.open_transactions)
    assert sej("kestrel", "state", tmp_path / "missing", "cars").returncode == 4
    assert sej("kestrel", "dump", tmp_path / "missing").returncode == 4


def test_damage_is_named_after_good_items() -> None:
    directory = GOLDEN / "bad_opcode_127" / "journal"
    commands: list[list[str | Path]] = [["dump", directory / "cars"], ["state", directory, "cars"]]
    for words in commands:
        done = sej("kestrel", *words)
        assert done.returncode == 1
        assert done.stdout
        assert b"position" in done.stderr


def test_there_and_back(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "expiry" / "journal", tmp_path / "spool")
    items = kestrel.replay(tmp_path / "spool", "cars").items
    done = sej("kestrel", "export", tmp_path / "spool", "cars", tmp_path / "journal")
    assert done.returncode == 0, done.stderr
    assert int(sej("count", tmp_path / "journal").stdout) == len(items)
    assert sej("kestrel", "import", tmp_path / "back", "cars", tmp_path / "journal").returncode == 0
    assert [item.data for item in kestrel.replay(tmp_path / "back", "cars").items] == [item.data for item in items]
    assert sej("kestrel", "pack", tmp_path / "back", "cars").returncode == 0
    assert [item.data for item in kestrel.replay(tmp_path / "back", "cars").items] == [item.data for item in items]
    with kestrel.Queue(tmp_path / "back", "cars"):
        assert sej("kestrel", "export", tmp_path / "back", "cars", tmp_path / "again").returncode == 3


def test_kestrel_3(tmp_path: Path) -> None:
    with library.Writer(tmp_path / "journal") as writer:
        writer.append_many([b"one", b"\xff"])
        writer.append(b"keyed", b"k")
    words: list[str | Path] = ["kestrel", "import", "--segmented", tmp_path / "spool", "jobs", tmp_path / "journal"]
    assert sej(*words).returncode == 1
    assert sej(*words, "--drop-keys").returncode == 0
    rows = [
        json.loads(line)
        for line in sej("kestrel", "state", "--segmented", "--json", tmp_path / "spool", "jobs").stdout.splitlines()
    ]
    assert [row["data"] for row in rows if "data" in row] == ["one", "keyed"]
    assert [row["data_b64"] for row in rows if "data_b64" in row] == ["/w=="]
    for file in (tmp_path / "spool").glob("jobs.*"):
        assert sej("kestrel", "dump", "--json", file).returncode == 0
    assert sej("kestrel", "export", "--segmented", tmp_path / "spool", "jobs", tmp_path / "back").returncode == 0
    assert sej("count", tmp_path / "back").stdout == b"3\n"


def spool_of_both(directory: Path) -> None:
    with kestrel.Queue(directory, "cars") as cars:
        cars.put_many([b"one", b"three"])
        cars.put(b"old", expiry=1)
        cars.reserve()
        with kestrel.Queue(directory, r"a\b+c") as odd:
            odd.put(b"odd")
        cars._store.storage.tail.close()  # as a killed process leaves it
    with segmented.Queue(directory, "jobs") as jobs:
        jobs.put_many([b"1", b"22"])
        jobs.reader("r").get()
    with segmented.Queue(directory, "two") as two:
        two.reader("x")
        two.reader("y")
        two.put(b"for both")
    (directory / "notes.txt").write_text("not a queue")


def test_ls_shows_every_queue_of_a_directory(tmp_path: Path) -> None:
    spool_of_both(tmp_path / "spool")
    before = {path: path.read_bytes() for path in (tmp_path / "spool").rglob("*")}
    rows = [json.loads(line) for line in sej("kestrel", "ls", "--json", tmp_path / "spool").stdout.splitlines()]
    assert [(row["queue"], row["format"]) for row in rows] == [
        (r"a\b+c", "kestrel"),
        ("cars", "kestrel"),
        ("jobs", "libkestrel"),
        ("two", "libkestrel"),
    ]
    assert b"queue=cars\tformat=kestrel" in sej("kestrel", "ls", tmp_path / "spool").stdout
    assert {path: path.read_bytes() for path in (tmp_path / "spool").rglob("*")} == before
    assert sej("kestrel", "ls", tmp_path / "missing").returncode == 4


def test_a_hub_as_one_stream(tmp_path: Path) -> None:
    with hub.Store(tmp_path / "hub") as store:
        store.put("EWR", "flights", [library.Message(0, 1, 0, b"", b"first"), library.Message(1, 3, 0, b"", b"\xff")])
        store.put("JFK", "flights", [library.Message(0, 2, 0, b"", b"second")])
    rows = [json.loads(line) for line in sej("hub", "merge", "--json", tmp_path / "hub").stdout.splitlines()]
    assert [(row["client"], row.get("value")) for row in rows] == [("EWR", "first"), ("JFK", "second"), ("EWR", None)]
    assert sej("hub", "merge", tmp_path / "hub").stdout == b""
    assert len(sej("hub", "merge", "--reader", "other", tmp_path / "hub").stdout.splitlines()) == 3
    assert b"  other 0 behind  sej 0 behind\n" in sej("hub", "ls", tmp_path / "hub").stdout


def test_a_queue_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "expiry" / "journal", tmp_path / "spool")
    before = sorted(path.name for path in (tmp_path / "spool").iterdir())
    commands: list[list[str | Path]] = [["state"], ["pack"], ["export"], ["state", "--segmented"]]
    for command, *options in commands:
        more = [tmp_path / "journal"] if command == "export" else []
        done = sej("kestrel", command, *options, tmp_path / "spool", "typo", *more)
        assert (done.returncode, b"no file of a queue 'typo'" in done.stderr) == (4, True)
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == before
    assert not (tmp_path / "journal").exists()


def test_files_say_whose_they_are(tmp_path: Path) -> None:
    with segmented.Queue(tmp_path / "three", "jobs") as three:
        three.put(b"one")
    with kestrel.Queue(tmp_path / "two", "jobs") as two:
        two.put(b"two")
    before = {path.name: path.read_bytes() for path in (tmp_path / "three").iterdir()}
    assert b"data=b'one'" in sej("kestrel", "state", tmp_path / "three", "jobs").stdout
    assert sej("kestrel", "export", tmp_path / "three", "jobs", tmp_path / "j").stdout.startswith(b"1 items")
    done = sej("kestrel", "pack", tmp_path / "three", "jobs")
    assert (done.returncode, b"Kestrel 3" in done.stderr) == (2, True)
    for name, data in before.items():
        assert name.endswith("~~lock") or (tmp_path / "three" / name).read_bytes() == data
    assert sej("kestrel", "state", "--segmented", tmp_path / "two", "jobs").returncode == 2
    assert sej("kestrel", "import", tmp_path / "three", "jobs", tmp_path / "j").returncode == 0
    assert len(segmented.load(tmp_path / "three", "jobs").items) == 2


def test_a_path_that_is_not_a_hub(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    done = sej("hub", "ls", tmp_path / "root")
    assert (done.returncode, b"not a hub's root" in done.stderr) == (4, True)
    for words in (
        ["serve", "--address", "nonsense", tmp_path / "root"],
        ["push", "--client", "a", tmp_path, "nonsense"],
    ):
        done = sej("hub", *map(str, words))
        assert (done.returncode, b"expected host:port" in done.stderr) == (2, True)
    done = sej("hub", "serve", "--address", "0.0.0.0:0", tmp_path / "root")
    assert (done.returncode, b"--plaintext" in done.stderr) == (2, True)
    assert sej("hub", "clean", tmp_path / "root").returncode == 2


def test_a_file_is_not_a_directory_of_queues(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = sej("kestrel", "ls", tmp_path / "file")
    assert (done.returncode, b"file: this is a file; expected the directory" in done.stderr) == (4, True)


def test_the_files_of_a_journal_are_not_queues(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with library.Writer(path) as writer:
        writer.append(b"a")
    before = {file: file.is_file() and file.read_bytes() for file in tmp_path.rglob("*")}
    commands: list[list[str | Path]] = [
        ["kestrel", "ls", path],
        ["kestrel", "state", path, "id"],
        ["kestrel", "pack", path, "id"],
        ["kestrel", "import", path, "id", path],
    ]
    for kind in ("kestrel", "libkestrel"):
        commands.append(["queue", "get", "--backend", kind, path / "id"])
        commands.append(["queue", "put", "--backend", kind, path / "id", "x"])
    for words in commands:
        done = sej(*words)
        assert done.returncode == 1 and b"this is a SEJ directory" in done.stderr, words
    assert {file: file.is_file() and file.read_bytes() for file in tmp_path.rglob("*")} == before


def test_the_file_of_another_program_is_not_opened_as_a_queue(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("some text")
    assert b"move it away if it is another program's" in sej("kestrel", "state", tmp_path, "notes").stderr
    assert sej("queue", "get", "--backend", "kestrel", tmp_path / "notes").returncode == 1
    assert sej("kestrel", "pack", tmp_path, "notes").returncode == 1
    assert (tmp_path / "notes").read_text() == "some text"
    assert not (tmp_path / "kept").exists()
