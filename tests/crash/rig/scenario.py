"""One machine, one system on it, what happens to them, and the verdict."""

import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.crash.rig.machine import Machine, said
from tests.crash.rig.medium import BLOCK_BYTES, MARKER, Mark, Record, Subset, marks
from tests.crash.rig.systems import SYSTEMS
from tests.sej.hooks import until

ROOT: Final = Path(__file__).parent.parent.parent.parent
ALWAYS: Final = 1 << 40


class Scenario:
    """Steps of a history. Each is noted, so that a failure shows what happened.

    Several processes may take part; what is asked and killed is the one of :attr:`who`.

    Attributes:
        machine: the device and the file system.
        dice: of this history.
        story: the steps, with the errors that they met.
        who: the number of the process that acts.
    """

    def __init__(self, file_system: str, program: Path, system: str, dice: random.Random) -> None:
        self.dice = dice
        self.who = 0
        self._file_system = file_system
        self._program = program
        self._system = system
        self._size = dice.choice(["small", "large"])
        self.story = [f"{system} on {file_system}, {self._size} files"]
        self._number = 0
        self._workers: dict[int, subprocess.Popen[str]] = {}
        self._said: list[Mark] = []
        self.machine = Machine(file_system, program)

    # The process

    @property
    def _path(self) -> Path:
        return self.machine.path / "data"

    def _spawn(self) -> subprocess.Popen[str]:
        words = [self._system, self._size, str(self._path), str(self.machine.marks)]
        command = [sys.executable, "-m", "tests.crash.rig.worker", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def _worker(self) -> subprocess.Popen[str]:
        if self.who not in self._workers:
            self._workers[self.who] = self._spawn()
        return self._workers[self.who]

    def ask(self, word: str, number: int | None = None) -> str | None:
        """Let the process do something, a new one if there is none; its error."""
        return self._answer(self._worker(), word if number is None else f"{word} {number}")

    def _answer(self, worker: subprocess.Popen[str], line: str) -> str | None:
        assert worker.stdin is not None and worker.stdout is not None and worker.stderr is not None
        worker.stdin.write(line + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
        assert answer, f"{self.transcript()}\n{line}: the process failed:\n{worker.stderr.read()}"
        error: str | None = json.loads(answer)
        self.story.append(f"{self.who}: {line}" if error is None else f"{self.who}: {line} -> {error}")
        return error

    def kill(self) -> None:
        """SIGKILL."""
        worker = self._workers.pop(self.who, None)
        if worker is not None:
            self.story.append(f"{self.who}: killed")
            worker.kill()
            worker.communicate()

    def kill_all(self) -> None:
        """SIGKILL to every process."""
        for who in list(self._workers):
            self.who = who
            self.kill()
        self.who = 0

    def kill_amid(self, acts: int) -> None:
        """SIGKILL in the middle of one of the acts after so many."""
        worker = self._worker()
        assert worker.stdin is not None and worker.stdout is not None
        first = self._number
        self._number += 100_000
        worker.stdin.write(f"loop {first}\n")
        worker.stdin.flush()
        for _ in range(acts):
            if worker.stdout.readline() != "null\n":
                break
        self.story.append(f"{self.who}: acts {first}, ...")
        self.kill()

    def kill_opening(self, writes: int) -> None:
        """SIGKILL while the object is opened, after the device has got so many blocks or all of them."""
        self.kill()
        worker = self._worker()
        answers = worker.stdout
        assert worker.stdin is not None and answers is not None
        enough = self.machine.log_size() + writes * BLOCK_BYTES
        worker.stdin.write("open\n")
        worker.stdin.flush()
        until(lambda: self.machine.log_size() >= enough or bool(select.select([answers], [], [], 0)[0]))
        self.story.append(f"{self.who}: open, with {writes} blocks written")
        self.kill()

    def take_over(self, system: str) -> None:
        """The processes from now on have another system."""
        self.kill_all()
        self._system = system
        self.story.append(system)

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

    def begin(self, count: int = 5, *, weak: bool = False) -> None:
        """Open the object, and do so many acts; both must be possible."""
        self.must(self.open(weak=weak))
        self.must(self.work(count))

    def fail(self) -> None:
        """Begin, do one act whose data the device refuses, and let the device work again."""
        self.begin()
        self.poison()
        self.mend()

    def poison(self, times: int = ALWAYS) -> str | None:
        """Do one act whose data the device refuses that often, at most until :meth:`mend`."""
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
        self.kill_all()
        self.machine.unmount()
        self.machine.mount()
        self.story.append("remount")

    def must(self, error: str | None) -> None:
        """A disk that works again must be of use: the step may fail only where the file system itself gave up."""
        assert error is None or not self.machine.is_writable(), f"{self.transcript()}\nthe disk works, but: {error}"

    # The verdict

    def lose_power(self) -> None:
        """Cut the power, and continue with the bytes on the medium."""
        subset = self.dice.choice(_SUBSETS)
        log = self._stop()
        old = self.machine
        try:
            old.leave(log, subset, self.dice)
            self._said += marks(log)
            self.machine = Machine(self._file_system, self._program, old)
        finally:
            old.close()
        self.story.append(f"power cut, {subset} of the unflushed writes kept")

    def _stop(self) -> list[Record]:
        log = self.machine.log()  # before the processes are killed: closing writes nothing, but unmounting does
        self.kill_all()
        self.machine.stop()
        return log

    def judge(self, more: int = 3) -> None:
        """Cut the power now, and at so many moments before, and judge what the medium has.

        Raises:
            AssertionError: something that was acknowledged is not there.
        """
        log = self._stop()
        first = next((mark.at for mark in marks(log)), len(log))
        cuts = [(len(log), subset) for subset in _SUBSETS]
        cuts += [(self.dice.randint(first, len(log)), self.dice.choice(_SUBSETS)) for _ in range(more)]
        for moment, subset in cuts:
            happened = self._said + said(log, moment)
            with self.machine.after_cut(log, moment, subset, self.dice) as medium:
                try:
                    SYSTEMS[self._system].judge(medium / "data", happened)
                except Exception as error:
                    where = f"power cut at record {moment} of {len(log)}, {subset} of the unflushed writes kept"
                    error.add_note(f"{self.transcript()}\n{where}; marks: {len(happened)}")
                    raise

    def transcript(self) -> str:
        """The story until now."""
        return "\n".join(self.story)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_all()
        self.machine.close()


_SUBSETS: Final[tuple[Subset, ...]] = ("none", "all", "random")
