"""A hub behind a transport that loses, repeats, reorders and cuts, all by one seed; no threads, no clock.

It replaces :class:`hub.wire.Client`: a copier requests the end of a journal and sends chunks. Requests and
acknowledgements go wrong here, but the answers of the store are real.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import hub
from hub.wire import JournalState


class Transport:
    """One client's way to a store."""

    def __init__(self, store: hub.Store, client_id: str, rng: random.Random, trouble: float) -> None:
        self.store = store
        self.client_id = client_id
        self._rng = rng
        self._trouble = trouble
        self._late: list[tuple[str, bytes, bool]] = []  # requests that are still on their way
        self.refused = 0

    def where(self, journal_dir: str, *, own: range) -> JournalState:
        """Return the state of a journal, or lose the request or the answer."""
        self._deliver_late()
        if self._goes_wrong():
            raise hub.UnavailableError("the question was lost")
        first = self.store.first_offset(self.client_id, journal_dir)
        standing = JournalState(first is not None, first or 0, self.store.end_offset(self.client_id, journal_dir))
        if self._goes_wrong():
            raise hub.UnavailableError("the answer was lost")
        return standing

    def copy(
        self, journal_dir: str, chunks: Iterable[bytes], *, create: bool, accept_gaps_from: int | None
    ) -> Iterator[int]:
        """Chunks arrive, or twice, or later, or never; so do their acknowledgements."""
        waiting: list[tuple[bytes, bool]] = []
        for data in chunks:
            chunk, create = (data, create), False
            if self._goes_wrong():
                self._late.append((journal_dir, *chunk))  # arrives much later, when the client has given up
                raise hub.UnavailableError("cut before it arrived")
            waiting.append(chunk)
            if len(waiting) < 3 and self._rng.random() < 0.5:
                continue
            if self._goes_wrong():
                self._rng.shuffle(waiting)
            if self._goes_wrong():
                waiting.append(self._rng.choice(waiting))
            yield from self._arrive(journal_dir, waiting)
            waiting = []
        yield from self._arrive(journal_dir, waiting)

    def _arrive(self, journal_dir: str, chunks: list[tuple[bytes, bool]]) -> Iterator[int]:
        for chunk, create in chunks:
            try:
                offset = self.store.put_encoded(self.client_id, journal_dir, chunk, create=create)
            except hub.GapError as error:
                self.refused += 1
                raise hub.UnavailableError(f"came out of order: {error}") from error
            if self._goes_wrong():
                raise hub.UnavailableError("cut after it was stored")
            yield offset

    def _deliver_late(self) -> None:
        while self._late and self._rng.random() < 0.5:
            journal_dir, chunk, create = self._late.pop(self._rng.randrange(len(self._late)))
            try:
                self.store.put_encoded(self.client_id, journal_dir, chunk, create=create)
            except hub.GapError:
                self.refused += 1

    def _goes_wrong(self) -> bool:
        return self._rng.random() < self._trouble
