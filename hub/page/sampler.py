"""What the page may show, and samples of it, which all viewers share.

A browser names a place by its path. The path is only ever compared with the paths found here, so no request can reach
another file. Symbolic links that lead out of the paths of the command line are not followed.

They are at most two seconds old when a page shows them. With thousands of journals, they are up to 30 seconds old, so
that looking at them takes a twentieth of a core. A journal that did not change is not read again, and checks take at
most a fortieth of the time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from hub.naming import is_root, parse_source
from sej.cli.shared.findings import Finding, findings_of
from sej.cli.shared.readers import Sample, Watched, journals_below, stuck
from sej.errors import JournalNotFoundError
from shard.names import find, split_name

STUCK_S: Final = 60.0
"""A running reader that commits nothing for this long, although it has messages to read, is stuck."""
_INTERVAL_S: Final = 2.0
_LONGEST_S: Final = 30.0
_LOOKS: Final = 1 / 20
_CHECKS: Final = 1 / 40
"""Shares of the time from one round to the next: the CPU time of its looks, and at most that of its checks."""
_CHECK_AGAIN_S: Final = 600.0
_SMALL_BYTES: Final = 1 << 20
_PATIENCE_S: Final = 2.0
"""How long the first page waits for the figures."""
_BEING_READ: Final = "this journal is being read"
_LEADS_OUT: Final = "a symbolic link leads out of the paths of this page; start it with the path where it leads, too"

Kind = Literal["journal", "shards", "hub", "directory", "text queue"]


class Place(NamedTuple):
    """One path of the command line.

    Attributes:
        path: the path.
        kind: what it is; ``"directory"`` is a directory of journals and ``.tq`` files.
    """

    path: Path
    kind: Kind

    def parts(self) -> list[tuple[str, str]]:
        """Return what the navigation lists of it: kinds, and names in addresses."""
        if self.kind == "shards":  # a sharded journal of a single shard is a plain journal
            found = find(self.path, layout="shards").paths
            return [("sharded journal", str(self.path / path.name)) for path in found if path.bits]
        own: list[tuple[str, str]] = [] if self.kind == "journal" else [(self.kind, str(self.path))]
        if self.kind != "directory":
            return own
        files = [str(path) for path in sorted(self.path.glob("*.tq")) if path.is_file()]
        return own + [("text queue", path) for path in files if is_inside(path, [self.path])]


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
        samples: by path.
        problems: what is wrong with a journal, by its path; sound journals are missing.
        checked: the journals that were checked at least once.
    """

    samples: dict[str, Sample]
    problems: dict[str, list[str]]
    checked: Collection[str]


class Sampler:
    """Samples journals when a page needs them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Take the first round; of many journals only the names, while the figures are read.

        Args:
            paths: journals, and directories of journals.

        Attributes:
            interval_s: how old samples are before a page takes a new round.
        """
        self._watched = Watched(paths)
        self._paths = paths
        self._found: dict[str, tuple[float, int, list[Finding]]] = {}
        self._damage: dict[str, list[Finding]] = {}
        self._lock = threading.Lock()
        self._out: set[str] = set()
        names = dict.fromkeys(journal for path in paths for journal in journals_below(path))
        self._round = Round({name: Sample(name, time.time_ns(), error=_BEING_READ) for name in names}, {}, ())
        self._taken_at, self.interval_s = float("-inf"), _INTERVAL_S
        self._first = threading.Thread(target=self._take, name="sej-sampler", daemon=True)
        self._first.start()
        self._first.join(_PATIENCE_S)

    @property
    def round(self) -> Round:
        """The samples, at most :attr:`interval_s` old."""
        if self._first.is_alive():
            return self._round
        with self._lock:
            if time.monotonic() - self._taken_at >= self.interval_s:
                self._take()
            return self._round

    def check(self, path: str, *, full: bool = False) -> tuple[list[Finding], bool]:
        """Check a journal, and return what the overview shows of it from now on, and whether every message was read.

        Args:
            path: the journal.
            full: read every message of a large journal too. Else the damage is shown that the last full check found.
        """
        sample = self._round.samples.get(path, Sample(path, 0))
        found = self._check(sample, full=full)
        self._round.problems.pop(path, None)
        if problems := self._problems(sample):
            self._round.problems[path] = problems
        return found

    def may_show(self, path: str) -> bool:
        """Return whether no symbolic link of a journal leads out of the paths."""
        try:
            return is_inside(path, self._paths)
        except OSError:
            return False

    def _take(self) -> None:
        """Look at all journals, and check some of those that changed; of larger ones, not every message is read."""
        began = time.thread_time()
        seen = self._watched.look()
        self._out -= self._watched.read
        self._out.update(path for path in self._watched.read if not self.may_show(path))
        samples = {
            one.path: Sample(one.path, one.time_ns, error=_LEADS_OUT) if one.path in self._out else one for one in seen
        }
        for gone in self._found.keys() - samples.keys():
            del self._found[gone]
            self._damage.pop(gone, None)
        looked = time.thread_time()
        if threading.current_thread() is not self._first:  # the first round reads all journals
            self.interval_s = min(max(_INTERVAL_S, (looked - began) / _LOOKS), _LONGEST_S)
        self._taken_at = time.monotonic()
        for path, sample in samples.items():
            if time.thread_time() - looked > self.interval_s * _CHECKS:
                break
            before = self._found.get(path)
            changed = before is None or before[1] != sample.end_offset
            if changed and sample.error is None and (before is None or self._taken_at - before[0] > _CHECK_AGAIN_S):
                self._check(sample)
        problems = {path: found for path, sample in samples.items() if (found := self._problems(sample))}
        self._round = Round(samples, problems, self._found.keys())

    def _check(self, sample: Sample, *, full: bool = False) -> tuple[list[Finding], bool]:
        full = full or sample.bytes <= _SMALL_BYTES
        found = findings_of(sample.path, quick=not full)
        if full:
            self._damage[sample.path] = [one for one in found if one.what == "damage" and one.level == "problem"]
        else:
            found += [one for one in self._damage.get(sample.path, ()) if one not in found]
        self._found[sample.path] = time.monotonic(), sample.end_offset, found
        return found, full

    def _problems(self, sample: Sample) -> list[str]:
        if sample.error is not None:
            return [sample.error]
        found = []
        for reader, _ in sample.readers:
            if wrong := reader.error or stuck(sample.path, reader, STUCK_S, sample.first_offset):
                found.append(f"reader {reader.name}: {wrong}")
        for queue in sample.queues:
            found += [f"queue {queue.name}: {late}" for late in queue.late(STUCK_S)]
        checked = self._found.get(sample.path)
        if checked is not None:
            found += [
                f"{finding.what}: {finding.found}"
                for finding in checked[2]
                if finding.level == "problem" and not finding.what.startswith("reader ")
            ]
        return found
