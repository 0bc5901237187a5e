"""What the page may show, and samples of it, taken by one thread for all viewers, with a short history of each.

A browser names a place by its path. The path is only ever compared with the paths found here, so no request can reach
another file. Symbolic links that lead out of the paths of the command line are not followed.

The thread limits itself: after a round that took ``t`` seconds of CPU time it sleeps at least ``99 t`` if no page was
requested for a while, and ``19 t`` otherwise. So the page costs at most 1 % of a core when it is idle, with any
number of journals.
Memory is bounded by the number of journals and readers: a history has a fixed length.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hub.naming import is_root, parse_source
from sej.cli.shared.findings import Finding
from sej.cli.shared.readers import journals_below, stuck
from sej.cli.shared.watched import Sample, Watched
from sej.cli.stat import findings_of
from sej.errors import JournalNotFoundError, SejError
from sej.queue.look import QueueLook
from shard.names import Path as ShardPath
from shard.names import split_name
from shard.trees import find

LENGTH: Final = 120
"""Numbers in the history of a series."""
STUCK_S: Final = 60.0
"""A running reader that commits nothing for this long, although it has messages to read, is stuck."""
_INTERVAL_S: Final = 2.0
_IDLE_INTERVAL_S: Final = 10.0
_IDLE_SHARE: Final = 0.01
_SHARE: Final = 0.05
_LOOK_S: Final = 0.02
"""CPU time for checks in one round."""
_CHECK_AGAIN_S: Final = 600.0
_SMALL_BYTES: Final = 1 << 20
_QUEUE_S: Final = 3600.0
_LEADS_OUT: Final = "a symbolic link leads out of the paths of this page; start it with the path where it leads, too"
_log = logging.getLogger(__name__)

Kind = Literal["journal", "shards", "hub", "directory", "text queue"]


class Place(NamedTuple):
    """One path of the command line.

    Attributes:
        path: the path.
        kind: what it is; ``"directory"`` is a directory of journals and ``.tq`` files.
    """

    path: Path
    kind: Kind

    @property
    def text(self) -> str:
        """The path as text."""
        return str(self.path)


class Shards(NamedTuple):
    """One sharded journal.

    Attributes:
        name: its name in addresses: the path of its shards without their numbers.
        shards: root, prefix and bits.
    """

    name: str
    shards: ShardPath


def place_of(path: Path) -> Place:
    """Recognise a path.

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: it is a file that is not a ``.tq`` file.
    """
    if not path.exists():
        raise JournalNotFoundError("the path does not exist; create the journal or the .tq file first", path=path)
    if path.suffix == ".tq" and not path.is_dir():
        return Place(path, "text queue")
    if is_root(path):
        return Place(path, "hub")
    journals = journals_below(path)
    if journals == [str(path)]:
        return Place(path, "journal")
    names = [os.path.basename(journal) for journal in journals]
    parts = [split_name(name) for name in names]
    if all(parts) and any(part is not None and part[1] for part in parts):
        return Place(path, "shards")
    return Place(path, "hub" if names and all(parse_source(name) for name in names) else "directory")


def shards_of(root: Path) -> list[Shards]:
    """Return the sharded journals of a root, by name; without those of a single shard, which are plain journals."""
    found = find(root, layout="shards").paths
    return [Shards(os.path.join(str(root), path.name), path) for path in found if path.bits]


def text_queues_of(place: Place) -> list[str]:
    """Return the ``.tq`` files of a path."""
    if place.kind == "text queue":
        return [place.text]
    if place.kind != "directory":
        return []
    found = (str(path) for path in place.path.glob("*.tq") if path.is_file())
    return sorted(path for path in found if is_inside(path, [place.path]))


def is_inside(path: str, roots: Iterable[Path]) -> bool:
    """Return whether a file or journal is below one of the roots, and no link of it or in it leads out of them."""
    real = [os.path.realpath(root) for root in roots]
    return all(
        any(os.path.commonpath((root, there)) == root for root in real)
        for there in map(os.path.realpath, (path, *_links(path)))
    )


def _links(path: str) -> Iterator[str]:
    folders = [path] if os.path.isdir(path) else []
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                elif entry.is_dir():
                    folders.append(entry.path)


class Round(NamedTuple):
    """One round of samples.

    Attributes:
        number: its number, from 1.
        samples: by path.
        problems: what is wrong with a journal, by its path; sound journals are missing.
    """

    number: int
    samples: dict[str, Sample]
    problems: dict[str, list[str]]


_History: Final = partial(deque[float], maxlen=LENGTH)


class _Queue:
    """The history of one queue."""

    def __init__(self) -> None:
        self.asked_at = time.monotonic()
        self.counts: defaultdict[str, deque[float]] = defaultdict(_History)


class Sampler:
    """Samples journals until it is closed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Take the first round; :meth:`start` takes more.

        Args:
            paths: journals, and directories of journals.
        """
        self._watched = Watched(paths)
        self._paths = paths
        self._rates: defaultdict[str, deque[float]] = defaultdict(_History)
        self._lags: defaultdict[tuple[str, str], deque[float]] = defaultdict(_History)
        self._found: dict[str, tuple[float, int, list[Finding]]] = {}
        self._damage: dict[str, list[Finding]] = {}
        self._queues: dict[tuple[str, str], _Queue] = {}
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._asked_at = float("-inf")
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.round = Round(0, {}, {})
        self._take()

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="sej-page-sampler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def viewed(self) -> None:
        """Sample more often for a while: a browser has requested a page."""
        self._asked_at = time.monotonic()
        self._wake.set()

    def rates(self, path: str) -> list[float]:
        """Return a journal's messages per second, oldest first."""
        return list(self._rates.get(path, ()))

    def lags(self, path: str, reader: str) -> list[float]:
        """Return how many messages a reader was behind, oldest first."""
        return list(self._lags.get((path, reader), ()))

    def queue_counts(self, path: str, name: str) -> dict[str, list[float]]:
        """Return the numbers of a queue's items by state, oldest first.

        They are sampled from the first call on, until an hour after the last one.
        """
        with self._lock:
            found = self._queues.setdefault((path, name), _Queue())
            found.asked_at = time.monotonic()
            return {state: list(history) for state, history in found.counts.items()}

    def check(self, path: str, *, full: bool = False) -> tuple[list[Finding], bool]:
        """Check a journal, and return what the overview shows of it from now on, and whether every message was read.

        Args:
            path: the journal.
            full: read every message of a large journal too. Else the damage is shown that the last full check found.
        """
        sample = self.round.samples.get(path, Sample(path, 0))
        full = full or sample.bytes <= _SMALL_BYTES
        found = findings_of(path, quick=not full)
        if full:
            self._damage[path] = [one for one in found if one.what == "damage" and one.level == "problem"]
        else:
            found += [one for one in self._damage.get(path, ()) if one not in found]
        self._found[path] = time.monotonic(), sample.end_offset, found
        return found, full

    def may_show(self, path: str) -> bool:
        """Return whether no symbolic link of a journal leads out of the paths."""
        try:
            return is_inside(path, self._paths)
        except OSError:
            return False

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.thread_time()
            try:
                self._take()
                self._check(began)
            except Exception:  # the page continues with its last samples
                _log.exception("sampling failed")
            cost = time.thread_time() - began
            self._wake.clear()  # first: what is set from here on ends the wait
            busy = time.monotonic() - self._asked_at < _IDLE_INTERVAL_S
            share, least = (_SHARE, _INTERVAL_S) if busy else (_IDLE_SHARE, _IDLE_INTERVAL_S)
            if busy or self._stop.is_set():
                self._stop.wait(max(least, cost / share))
            else:
                self._wake.wait(max(least, cost / share))

    def _take(self) -> None:
        samples = {
            sample.path: sample if self.may_show(sample.path) else Sample(sample.path, sample.time_ns, error=_LEADS_OUT)
            for sample in self._watched.look()
        }
        for path, sample in samples.items():
            self._rates[path].append(sample.rate or 0.0)
            for reader, _ in sample.readers:
                self._lags[path, reader.name].append(reader.behind)
        self._count()
        for gone in self._rates.keys() - samples.keys():
            del self._rates[gone]
            self._found.pop(gone, None)
            self._damage.pop(gone, None)
        readers = {(path, reader.name) for path, sample in samples.items() for reader, _ in sample.readers}
        for old in self._lags.keys() - readers:
            del self._lags[old]
        problems = {path: found for path, sample in samples.items() if (found := self._problems(sample))}
        self.round = Round(self.round.number + 1, samples, problems)

    def _count(self) -> None:
        """Sample the queues whose page was open within the last hour."""
        with self._lock:
            late = time.monotonic() - _QUEUE_S
            self._queues = {key: one for key, one in self._queues.items() if one.asked_at > late}
            queues = list(self._queues.items())
        for (path, name), one in queues:
            try:
                counts = QueueLook(path, name).stats()
                counts.pop("paused", None)
            except (SejError, OSError):
                continue  # its page reports it
            with self._lock:
                for state, count in counts.items():
                    one.counts[state].append(count)

    def _problems(self, sample: Sample) -> list[str]:
        if sample.error is not None:
            return [sample.error]
        found = []
        for reader, _ in sample.readers:
            wrong = reader.error
            if wrong is None:
                try:
                    wrong = stuck(sample.path, reader, STUCK_S, sample.first_offset)
                except (SejError, OSError) as error:
                    wrong = str(error)
            if wrong is not None:
                found.append(f"reader {reader.name}: {wrong}")
        checked = self._found.get(sample.path)
        if checked is not None:
            found += [
                f"{finding.what}: {finding.found}"
                for finding in checked[2]
                if finding.level == "problem" and not finding.what.startswith("reader ")
            ]
        return found

    def _check(self, began: float) -> None:
        """Check some journals; of larger ones, not every message is read."""
        now = time.monotonic()
        for path, sample in self.round.samples.items():
            if self._stop.is_set() or time.thread_time() - began > _LOOK_S:
                return
            before = self._found.get(path)
            if before is None or (before[1] != sample.end_offset and now - before[0] > _CHECK_AGAIN_S):
                self.check(path)
