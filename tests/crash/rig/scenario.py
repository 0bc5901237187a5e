"""One machine, one system on it, what happens to them, and the verdict."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.crash.rig.machine import Machine, said
from tests.crash.rig.medium import Subset, marks
from tests.crash.rig.systems import SYSTEMS
from tests.crash.rig.values import MARKER

ROOT: Final = Path(__file__).parent.parent.parent.parent
ALWAYS: Final = 1 << 40


class Scenario:
    """Steps of a history. Each is noted, so that a failure shows what happened.

    Attributes:
        machine: the device and the file system.
        story: the steps, with the errors that they met.
    """

    def __init__(self, machine: Machine, system: str, dice: random.Random) -> None:
        self.machine = machine
        self.system = system
        self.dice = dice
        self.story: list[str] = []
        self._path = machine.path / "data"
        self._number = 0
        self._worker: subprocess.Popen[str] | None = None

    # The process

    def start(self) -> None:
        """A new process takes the place of the one that is there."""
        self.kill()
        self._worker = self._spawn()

    def _spawn(self) -> subprocess.Popen[str]:
        words = [self.system, str(self._path), str(self.machine.marks)]
        command = [sys.executable, "-m", "tests.crash.rig.worker", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ask(self, word: str, number: int | None = None) -> str | None:
        """Let the process do something; its error."""
        if self._worker is None:
            self.start()
        assert self._worker is not None
        return self._answer(self._worker, word if number is None else f"{word} {number}")

    def _answer(self, worker: subprocess.Popen[str], line: str) -> str | None:
        assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
        worker.stdin.write(line + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
        assert answer, f"{self.told()}\n{line}: the process failed:\n{worker.stderr.read()}"
        error: str | None = json.loads(answer)
        self.story.append(line if error is None else f"{line} -> {error}")
        return error

    def kill(self) -> None:
        """SIGKILL."""
        if self._worker is not None:
            self.story.append("kill")
            self._worker.kill()
            self._worker.communicate()
            self._worker = None

    def take_over(self, other: "Scenario") -> None:
        """Go on with the numbers and the story of another one on the same machine."""
        self._number = other._number
        self.story += other.story

    def kill_amid(self, acts: int) -> None:
        """SIGKILL in the middle of one of the acts after so many."""
        if self._worker is None:
            self.start()
        worker = self._worker
        assert worker is not None and worker.stdin is not None and worker.stdout is not None
        first = self._number
        self._number += 100_000
        worker.stdin.write(f"loop {first}\n")
        worker.stdin.flush()
        for _ in range(acts):
            if worker.stdout.readline() != "null\n":
                break
        self.story.append(f"loop {first}")
        self.kill()

    def other(self, word: str) -> str | None:
        """Let another process do something to the files."""
        worker = self._spawn()
        try:
            return self._answer(worker, word)
        finally:
            worker.kill()
            worker.communicate()

    # What it does

    def fresh(self) -> int:
        """The next value's number."""
        self._number += 1
        return self._number - 1

    def open(self, *, weak: bool = False) -> str | None:
        """Open the object."""
        if weak:
            self.machine.mark("weak")
        return self.ask("weak" if weak else "open")

    def work(self, count: int) -> str | None:
        """So many acts; the first error."""
        error = None
        for _ in range(count):
            error = self.ask("act", self.fresh()) or error
        return error

    def poison(self, times: int = ALWAYS) -> str | None:
        """One act whose data the device refuses that often; it goes on refusing until :meth:`mend`."""
        self.refuse(f"marker {times} {MARKER}")
        return self.ask("poison", self.fresh())

    def refuse(self, command: str) -> None:
        """Let the device fail."""
        self.story.append(f"[{command}]")
        self.machine.control(command)

    def mend(self) -> None:
        """The device works again."""
        self.refuse("ok")

    def reopen(self) -> str | None:
        """Close the object and open it again; the error of opening."""
        self.ask("close")
        return self.ask("open")

    def remount(self) -> None:
        """Unmount and mount: what the cache alone had is gone."""
        self.kill()
        self.machine.unmount()
        self.machine.mount()
        self.story.append("remount")

    def must(self, error: str | None) -> None:
        """A disk that works again must be of use: the step may fail only where the file system itself gave up."""
        assert error is None or not self.machine.is_writable(), f"{self.told()}\nthe disk works, but: {error}"

    # The verdict

    def cut(self, more: int = 3) -> None:
        """Cut the power now, and at so many moments before, each in every way; judge what the medium has.

        Raises:
            AssertionError: something that was acknowledged is not there.
        """
        self.machine.mark("cut")
        self.kill()
        self.machine.stop()
        log = self.machine.log()
        moments = [mark.at for mark in marks(log)]
        last = next(mark.at for mark in reversed(marks(log)) if mark.word == "cut")
        chosen = [last, *self.dice.sample(moments, min(more, len(moments)))]
        for moment in chosen:
            for subset in _SUBSETS if moment == last else (self.dice.choice(_SUBSETS),):
                happened = said(log, moment)
                with self.machine.after_cut(log, moment, subset, self.dice) as medium:
                    try:
                        SYSTEMS[self.system].judge(medium / "data", happened)
                    except Exception as error:
                        where = f"power cut at record {moment} of {len(log)}, {subset} of the unflushed writes kept"
                        error.add_note(f"{self.told()}\n{where}; marks: {len(happened)}")
                        raise

    def told(self) -> str:
        """The story until now."""
        return "\n".join([f"{self.system}:", *self.story])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


_SUBSETS: Final[tuple[Subset, ...]] = ("none", "all", "random")
