"""What the tests of both queues share."""

import base64
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

import kestrel
from kestrel import segmented
from tests.sej.windows import shrunk

START = 1_500_000_000_000
OPENERS: dict[str, Any] = {"two": kestrel.Queue, "three": segmented.Queue}


def values(queue: kestrel.Queue) -> list[bytes]:
    """Take every item."""
    return [item.data for item in iter(queue.get, None)]


@contextmanager
def waiting(queue: kestrel.Queue, *calls: Any) -> Iterator[list[Future[Any]]]:
    """Let a thread wait in each of these calls, one after the other."""
    with ThreadPoolExecutor() as pool:
        found: list[Future[Any]] = []
        for call in calls:
            found.append(pool.submit(call, None))
            while queue.counters().waiters < len(found):
                pass
        yield found


class SmallWindows(RuleBasedStateMachine):
    """A state machine with smaller windows: the constants of modules."""

    windows: ClassVar[dict[str, list[str]]]

    def __init__(self) -> None:
        super().__init__()
        self._shrunk = shrunk(self.windows, 2048, 16)
        self._shrunk.__enter__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self._shrunk.__exit__(None, None, None)


# --- The golden cases of both formats: their directory, and how a test copies one

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def cases(kind: str) -> list[str]:
    return sorted(path.parent.name for path in (GOLDEN / kind).glob("*/expected.json"))


def manifest(kind: str, case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / kind / case / "expected.json").read_text())
    return found


def lay_out(kind: str, case: str, target: Path) -> dict[str, Any]:
    """Copy the files of a case to target, with the folders that a version control system does not keep."""
    shutil.copytree(GOLDEN / kind / case / "journal", target, dirs_exist_ok=True)
    found = manifest(kind, case)
    for file in found["files"]:
        if "size" not in file:
            (target / file["name"]).mkdir(exist_ok=True)
    return found


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory and what it holds."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def plain(data: str) -> bytes:
    return base64.b64decode(data)
