"""What the tests of both queues share."""

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from hypothesis.stateful import RuleBasedStateMachine

import kestrel
import sej
from kestrel import segmented
from sej.system.disk import OS, Disk
from tests.sej.windows import shrunk

START = 1_500_000_000_000
OPENERS: dict[str, Any] = {"two": kestrel.Queue, "three": segmented.Queue}


class Two:
    """A queue of Kestrel 2, by the names that both formats have in the tests."""

    opener = kestrel.Queue
    late_ms = 1  # an item expires after its time
    drop = "discard_oldest"

    def __init__(self, queue: kestrel.Queue, reader: str = "") -> None:
        self.queue: Any = queue
        self.end, self.back, self.flush = queue.confirm, queue.unreserve, queue.flush
        self.counters = queue.counters
        self.get, self.peek, self.put_many, self.close = queue.get, queue.peek, queue.put_many, queue.close

    @classmethod
    def open(cls, directory: Any, **options: Any) -> "Two":
        return cls(cls.opener(directory, "cars", **options))

    def put(self, data: bytes, until: int | None = None) -> None:
        self.queue.put(data, expiry=until or 0)

    def take(self, timeout: Any = 0.0) -> tuple[int, bytes] | None:
        found = self.queue.reserve(timeout)
        return found and (found[0], found[1].data)

    def __len__(self) -> int:
        return len(self.queue) + len(self.queue.open_transactions)

    def expired(self) -> int:
        found: int = self.counters().expired_items
        return found

    @staticmethod
    def left(directory: Any, disk: Disk = OS) -> list[bytes]:
        """What is not ended, as the files say."""
        return [item.data for item in kestrel.replay(directory, "cars", disk=disk).recovered]


class Three:
    """A reader of a libkestrel queue, by the same names."""

    opener = segmented.Queue
    late_ms = 0
    drop = "drop_oldest"

    def __init__(self, queue: segmented.Queue, reader: str = "") -> None:
        self.queue: Any = queue
        self.reader = at = queue.reader(reader, start="first")
        self.end, self.back, self.flush = at.commit, at.unget, at.flush
        self.counters = at.counters
        self.get, self.peek, self.put_many, self.close = at.get, at.peek, queue.put_many, queue.close

    @classmethod
    def open(cls, directory: Any, **options: Any) -> "Three":
        return cls(cls.opener(directory, "cars", **options))

    def put(self, data: bytes, until: int | None = None) -> None:
        self.queue.put(data, expire_time=until)

    def take(self, timeout: Any = 0.0) -> tuple[int, bytes] | None:
        item = self.reader.get(timeout)
        return item and (item.id, item.data)

    def __len__(self) -> int:
        return len(self.reader)

    def expired(self) -> int:
        return int(self.counters().expired)

    @staticmethod
    def left(directory: Any, disk: Disk = OS, reader: str = "") -> list[bytes]:
        """What is not ended, as the files say."""
        state = segmented.load(directory, "cars", disk=disk)
        head, done = state.readers.get(reader, segmented.Bookmark())
        return [item.data for item in state.items if item.id > head and item.id not in done]


KINDS: list[Any] = [Two, Three]


def values(queue: Any) -> list[bytes]:
    """Take every item."""
    return [item.data for item in iter(queue.get, None)]


def outcome(records: Iterator[Any]) -> tuple[list[Any], kestrel.KestrelError | None]:
    """What is read, and the error that ended it."""
    found: list[Any] = []
    try:
        for one in records:
            found.append(one)
    except kestrel.KestrelError as caught:
        return found, caught
    return found, None


@contextmanager
def waiting(queue: Any, *calls: Any) -> Iterator[list[Future[Any]]]:
    """Let a thread wait in each of these calls, one after the other."""
    with ThreadPoolExecutor() as pool:
        found: list[Future[Any]] = []
        for call in calls:
            found.append(pool.submit(call, None))
            while queue._signal.waiters < len(found):
                pass
        yield found


class HookedWriter:
    """A SEJ writer that calls a function before each batch, with False, and after it, with True."""

    def __init__(self, inner: sej.Writer, hook: Callable[[bool], object]) -> None:
        self.inner, self.hook = inner, hook
        self.path, self.sync = inner.path, inner.sync

    @property
    def offset(self) -> int:
        return self.inner.offset

    def append_many(self, *arguments: Any, **options: Any) -> object:
        self.hook(False)
        found = self.inner.append_many(*arguments, **options)
        self.hook(True)
        return found


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
