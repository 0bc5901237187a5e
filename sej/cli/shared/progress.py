"""A progress bar on standard error if that is a terminal, else nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(what: str, *, size: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """Give a function of (done, total); a total of None is unknown.

    Args:
        what: the label of the bar.
        size: True if it counts bytes.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich import progress as bars
    from rich.console import Console

    many = bars.DownloadColumn(binary_units=True) if size else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), many, bars.TimeElapsedColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def show(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield show
