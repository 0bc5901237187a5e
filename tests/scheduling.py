"""Which process of pytest-xdist runs which tests: those of a group, and the neighbours in a file, together.

pytest-xdist's own ``loadgroup`` gives each test without a group out by itself. What the fixtures of a file make once is
made in each process then. And after each test it counts all earlier tests of the process: half the time of the process
that collects the results.
"""

from typing import Final

from xdist.scheduler.loadgroup import LoadGroupScheduling
from xdist.workermanage import WorkerController

_TOGETHER: Final = 16
"""So many tests of a file go to one process together. With more, one process still works when the others have ended."""


class Neighbours(LoadGroupScheduling):  # type: ignore[misc, unused-ignore]  # pytest-xdist has no types
    """Gives out the groups and files of few tests first, because both take long, and last the pieces of 16 tests."""

    def schedule(self) -> None:
        """Name the piece of each test before the tests are divided."""
        if self.collection is None:
            self._pieces: dict[str, str] = {}
            self._groups: set[str] = set()
            number: dict[str, int] = {}
            for test in next(iter(self.registered_collections.values())):
                if (piece := super()._split_scope(test)) == test:
                    file = test.partition("::")[0]
                    number[file] = number.get(file, -1) + 1
                    piece = f"{file} {number[file] // _TOGETHER}"
                else:
                    self._groups.add(piece)
                self._pieces[test] = piece
        super().schedule()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget a test that has ended, so that only the others are counted."""
        test = self.registered_collections[node][item_index]
        piece = self._pieces[test]
        left = self.assigned_work[node][piece]
        del left[test]
        if not left:
            del self.assigned_work[node][piece]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Pytest-xdist takes the first of the queue, which begins with the largest."""
        groups = (piece for piece in self.workqueue if piece in self._groups)
        self.workqueue.move_to_end(next(groups, next(reversed(self.workqueue))), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return self._pieces[nodeid]
