"""Every advice of sej doctor is followed on the damage that it is for: nothing is lost, the finding is gone."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import pytest

import sej as library
from sej.cli.shared import findings
from sej.reading.archiving import archive
from tests.cli.command import ENV
from tests.cli.inside import inside
from tests.hub.support import serving
from tests.sej.support import commit, read_all, write

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


class Case(NamedTuple):
    """How to make some damage of a journal, and how its finding begins. Next to it is a copy from before."""

    make: Callable[[Path], object]
    what: str
    later: Callable[[Path], object] = lambda path: library.Writer(path).close()
    """What happens without any command, if the advice is to do nothing."""


def segments(path: Path) -> list[Path]:
    return sorted((path / "jnl").iterdir())


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def crash_in_a_batch(path: Path) -> None:
    code = (
        "import os, sys, sej; from sej.writing.exactly_once import Batches\n"
        "Batches._finish = lambda *_, **__: os._exit(9)\n"
        "sej.Writer(sys.argv[1]).append_once('load', 1, [b'row'])"
    )
    assert subprocess.run([sys.executable, "-c", code, path], env=ENV, check=False).returncode == 9


def damage_a_gap(path: Path) -> None:
    overwrite(segments(path)[0], 200, bytes(60))
    library.Journal(path).repair()
    overwrite(next((path / "gaps").iterdir()), 10, b"#")


def kept_at(path: Path, offset: int, name: str = "r") -> None:
    commit(path, name, offset)


def lose_the_last(path: Path) -> None:
    last = segments(path)[-1]
    end = library.Journal(path).end_offset
    with library.Scanner(path, end - 1) as scanner:
        (message,) = scanner.read()
    os.truncate(last, last.stat().st_size - 26 - len(message.value))


def lose_what_was_read(path: Path) -> None:
    kept_at(path, library.Journal(path).end_offset)
    lose_the_last(path)


def damage_a_kept_offset(path: Path) -> None:
    kept_at(path, 7)
    (path / "ofs" / "r.ofs").write_bytes(bytes(8))


def damage_a_queue(path: Path) -> None:
    with library.open_queue(path, "r") as queue:
        for item in queue.get_many(7, timeout=0):
            item.done()
    (path / "ofs" / "r.ofs").write_bytes(bytes(3))


def damage_a_queue_log(path: Path) -> None:
    with library.open_queue(path, "r") as queue:
        for item in queue.get_many(7, timeout=0)[1:]:
            item.done()
    log = path / "ofs" / "r.queue"
    overwrite(log, log.stat().st_size // 2, b"?")


def open_the_queue(path: Path) -> None:
    with library.open_queue(path, "r") as queue:
        assert "a bad record" in str(queue.recovered)  # type: ignore[attr-defined]
        for item in queue.get_many(200, timeout=0):
            item.done()


def delete_unread(path: Path) -> None:
    kept_at(path, 1)
    library.Journal(path).clean(max_bytes=0, ignore_readers=["r"])


def archive_a_part(path: Path) -> None:
    archive(path, path.parent / "tier")
    write(path, [b"one more"] * 90, segment_bytes=2000)


def delete_uncopied(path: Path) -> None:
    commit(path, "hub", 1)
    library.Journal(path).clean(max_bytes=0, ignore_readers=["hub"])


def delete_items(path: Path) -> None:
    library.open_queue(path, "r").close()
    library.Journal(path).clean(max_bytes=0, ignore_readers=["r"])


def fail_an_item(path: Path) -> None:
    with library.open_queue(path, "r", max_attempts=1) as queue:
        item = queue.get(timeout=0)
        assert item is not None
        item.fail("no such user")


def work(path: Path) -> None:
    with library.open_queue(path, "r") as queue:
        with pytest.warns(RuntimeWarning, match="retention removed"):
            items = queue.get_many(100, timeout=0)
        for item in items:
            item.done()


def remove_the_index(path: Path) -> None:
    write(path, [b"x" * 1000] * 2000)
    shutil.rmtree(path / "idx")


def start_a_segment(path: Path) -> None:
    with library.Writer(path) as w:
        w.end.rotate()


def put_into(path: Path, folder: str, name: str) -> None:
    (path / folder).mkdir(exist_ok=True)
    (path / folder / name).touch()


CASES = {
    "corruption": Case(lambda path: overwrite(segments(path)[0], 200, bytes(60)), "damage"),
    "corruption, a segment is missing": Case(lambda path: segments(path)[1].unlink(), "damage"),
    "corruption at the end": Case(lambda path: overwrite(segments(path)[-1], 30, bytes(60)), "damage"),
    "changed value": Case(lambda path: overwrite(segments(path)[0], 60, b"?"), "damage"),
    "lost messages": Case(lambda path: os.truncate(segments(path)[-1], 0), "lost messages"),
    "identity": Case(lambda path: (path / "id").write_bytes(b""), "identity"),
    "gap": Case(damage_a_gap, "journal"),
    "torn tail": Case(lambda path: os.truncate(segments(path)[-1], segments(path)[-1].stat().st_size - 3), "torn tail"),
    "foreign file": Case(lambda path: put_into(path, "jnl", "a note"), "foreign file"),
    "full disk": Case(lambda path: kept_at(path, 100), "disk"),
    "pending batch": Case(lambda path: put_into(path, "txn", "load.intent"), "pending batch"),
    "pending work": Case(crash_in_a_batch, "pending work"),
    "leftovers": Case(lambda path: put_into(path, "tmp", "load.rows"), "leftovers", start_a_segment),
    "index": Case(remove_the_index, "index"),
    "wrong offset": Case(lose_what_was_read, "reader r"),
    "wrong offset, changed bytes": Case(damage_a_kept_offset, "reader r"),
    "wrong offset of a queue": Case(damage_a_queue, "reader r"),
    "queue log": Case(damage_a_queue_log, "queue r", open_the_queue),
    "deleted messages": Case(delete_unread, "reader r"),
    "not archived": Case(archive_a_part, "reader cold-tier"),
    "not copied": Case(delete_uncopied, "reader hub"),
    "dead letters": Case(fail_an_item, "queue r"),
    "deleted items": Case(delete_items, "reader r", work),
    "idle reader": Case(lambda path: kept_at(path, 7), "reader r"),
    "idle queue": Case(lambda path: library.open_queue(path, "r").close(), "reader r"),
}
NOTES = {"kept bytes", "recorded gap"}
"""What a repair leaves, and no command has to remove."""


def test_every_advice_has_a_case() -> None:
    assert {re.split(", | at the | of a ", name)[0] for name in CASES} == set(findings.ADVICE)


def commands_of(do: str, path: Path, address: str) -> list[str]:
    names = {"COPY": str(path.parent / "copy"), "SIZE": "3000", "PROGRAM": "cat", "CLIENT": "a", "ADDRESS": address}
    return [re.sub("|".join(names), lambda found: names[found[0]], command) for command in re.findall("`([^`]+)`", do)]


def wrong(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Return level and advice by what was found, without what is well."""
    done = inside(monkeypatch, "doctor", "--json", path)
    rows = map(json.loads, done.out.splitlines())
    return {row["what"]: (row["level"], row["do"]) for row in rows if row["level"] != "ok" and row["what"] not in NOTES}


def messages(path: Path) -> dict[int, bytes]:
    return {message.offset: message.value for message in read_all(path, on_corruption="skip")}


@pytest.mark.parametrize(("name", "which"), [*((name, 0) for name in CASES), ("identity", 1)])
def test_it_makes_the_journal_better(name: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged identity has two ways out."""
    path, copy = tmp_path / ("journal" if name == "not copied" else "a journal"), tmp_path / "copy"
    write(path, [b"order %d" % number for number in range(150)], segment_bytes=2000)
    shutil.copytree(path, copy)
    sound = messages(path)
    case = CASES[name]
    case.make(path)
    if name == "full disk":
        monkeypatch.setattr(findings, "_FREE_BYTES", 1 << 62)
    before = wrong(path, monkeypatch)
    level, do = before[case.what]
    readable = {} if name == "gap" else messages(path)
    if do.startswith("nothing: "):
        case.later(path)
    else:
        with serving(tmp_path / "hub") if name == "not copied" else nullcontext() as served:
            if served is not None:
                served[0].put("a", "journal", library.Journal(copy).tail(150)[:1])
            command = commands_of(do, path, "" if served is None else served[1].address)[which]
            done = subprocess.run(
                command, shell=True, input=b"y\n", env={**ENV, "PATH": PATH}, capture_output=True, check=False
            )
        assert done.returncode == 0, (command, done.stderr.decode())
    after = wrong(path, monkeypatch)
    left = messages(path)
    if name == "full disk":
        assert 0 < min(left) <= 100, "what the reader has read is gone, and nothing else"
    else:
        assert case.what not in after or (level, after[case.what][0]) == ("problem", "note")
        assert after.keys() <= before.keys()
        for offset, value in readable.items():
            assert left[offset] == sound.get(offset, value)
    library.Writer(path).close()
