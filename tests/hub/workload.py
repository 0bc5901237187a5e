"""A process that runs the workload of two queues, and sometimes copies their journal to a hub."""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator

import hub
import sej
from hub.wire import Copier
from hub.wire.client import JournalState
from tests.queue.workload import Workload, main

CLIENT = "c"


class Local:
    """A hub in this process."""

    def __init__(self, store: hub.Store) -> None:
        self.store = store

    def where(self, journal_dir: str, *, own: range) -> JournalState:
        first = self.store.first_offset(CLIENT, journal_dir)
        return JournalState(first is not None, first or 0, self.store.end_offset(CLIENT, journal_dir))

    def copy(
        self, journal_dir: str, chunks: Iterable[bytes], *, create: bool, accept_gaps_from: int | None
    ) -> Iterator[int]:
        for chunk in chunks:
            yield self.store.put_encoded(CLIENT, journal_dir, chunk, create=create)
            create = False


class CopyingWorkload(Workload):
    """The workload of the queues, and the copier."""

    def copy(self) -> None:
        with (
            contextlib.suppress(sej.LockedError, hub.UnavailableError),  # another process copies
            hub.Store(f"{self.path}-hub", segment_bytes=self.dice.choice([500, 1 << 20]), disk=self.disk) as store,
            Copier(self.path, Local(store), disk=self.disk) as copier,
        ):
            copier.run_once()

    def acts(self) -> dict[Callable[[], None], int]:
        return {**super().acts(), self.copy: 3}


if __name__ == "__main__":
    main(CopyingWorkload, *sys.argv[1:])
