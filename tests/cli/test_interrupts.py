"""An interrupt (Ctrl-C) at each place of a command: it exits with 130 or as without it, and leaves no lock."""

import gc
import io
import os
import signal
import sys
import time
from pathlib import Path

import pytest

import sej
from sej.cli import main
from tests.cli.inside import Done, inside
from tests.crash.harness import seeded_random
from tests.sej.interrupts import interrupt, locked_below

COMMANDS = {
    "count": (),
    "scan": (),
    "verify": (),
    "index": (),
    "clean": ("--max-bytes", "1", "--ignore-reader", "r"),
    "offset": ("r",),
    "reset": ("r", "first", "--yes"),
    "queue put": ("v",),
    "queue get": (),
    "queue ls": (),
    "queue missing": ("--name", "none"),
}
"""For each command, the words after the journal."""
ITEMS = {b"a", b"b"}


def make(path: Path) -> None:
    """Make a journal of several segments with a reader and a queue."""
    with sej.Writer(path, segment_bytes=60) as w:
        w.append_many([b"%d" % n for n in range(5)])
    with sej.Offset(path, "r") as o:
        o.commit(2)
    with sej.open_queue(path, "queue", create=True, default=sej.LAST) as q:
        q.put_many(sorted(ITEMS))


def interrupted(monkeypatch: pytest.MonkeyPatch, path: Path, name: str, place: int) -> tuple[bool, Done]:
    """Interrupt a command at one place, and see that nothing is left; whether it got so far, and how it ended."""
    make(path)
    reached = False

    def program(words: list[str]) -> int:
        nonlocal reached
        codes: list[int] = []
        reached, error = interrupt(lambda: codes.append(main(words)), place, KeyboardInterrupt)
        assert error is None, f"place {place}"
        return codes[0]

    words = ("queue", "stats") if name == "queue missing" else name.split()
    done = inside(monkeypatch, *words, path, *COMMANDS[name], program=program)
    usual = 4 if name == "queue missing" else 0
    assert done.code in ((usual, 130) if reached else (usual,)), f"place {place}: {done}"
    assert "Traceback" not in done.err and "Aborted" not in done.err, f"place {place}: {done}"
    gc.collect()  # as the end of a command's process: a queue whose opening was interrupted is in a cycle
    assert locked_below(path) == [], f"place {place}"
    assert sej.Journal(path).verify() == [], f"place {place}"
    with sej.open_queue(path, "queue") as q:
        left = {item.value for item in q.get_many(10, timeout=0)}
    assert left - {b"v"} == ITEMS or (name == "queue get" and ITEMS - left == set(done.out.split())), f"place {place}"
    return reached, done


@pytest.mark.torture
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_interrupted_at_any_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, brief_s: float, name: str
) -> None:
    dice = seeded_random()
    interrupted(monkeypatch, tmp_path / "first", name, -1)
    most = 1000
    while interrupted(monkeypatch, tmp_path / f"most{most}", name, most)[0]:
        most *= 2
    until_s = time.monotonic() + brief_s
    for n in range(10**6):
        place = dice.randrange(1, most)
        if not interrupted(monkeypatch, tmp_path / str(n), name, place)[0]:
            most = place
        if time.monotonic() > until_s:
            break


def test_an_interrupt_while_an_error_is_printed_is_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupting(io.BytesIO):
        def write(self, data: object) -> int:
            signal.raise_signal(signal.SIGINT)
            return 0

    with monkeypatch.context() as patched, Path(os.devnull).open() as nothing:
        patched.setattr(sys, "stdin", nothing)
        patched.setattr(sys, "stderr", io.TextIOWrapper(Interrupting(), write_through=True))
        assert main(["count", str(tmp_path / "none")]) == 130
