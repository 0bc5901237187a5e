"""Text queues and Kestrel queues as sources of tables: files whose rows Python makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kestrel.magic import READER_MAGIC, WRITER_MAGIC
from kestrel.spool import files_of, magic_of, queues_in
from kestrel.v2.format import LAYOUTS
from pipeline.columns import KESTREL, TEXTQUEUE, batches_of
from pipeline.options import OptionError
from pipeline.reading import kestrel_items, text_entries
from pipeline.reading.conditions import Condition
from pipeline.reading.discovery import matcher
from pipeline.tables.where import Selection, Way
from sej.system.disk import OS

if TYPE_CHECKING:
    import pyarrow as pa


class Rows:
    """Files whose rows Python makes: text queues, or the queues of Kestrel."""

    def __init__(
        self,
        columns: Mapping[str, str],
        parts: Callable[[], list[Any]],
        rows: Callable[[Any], Iterable[dict[str, Any]]],
        size_of: Callable[[dict[str, Any]], int],
    ) -> None:
        """Set the columns, and the functions that list the parts and read each."""
        self.columns = columns
        self._parts = parts
        self._rows = rows
        self._size_of = size_of
        parts()

    def plan(self, selection: Selection) -> tuple[list[Any], list[Condition]]:
        """Return the files or queues, and all conditions."""
        return self._parts(), list(selection.where)

    def read(self, part: Any, selection: Selection, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file or queue."""
        return batches_of(self._rows(part), self._size_of, schema)

    def count(self, selection: Selection) -> None:
        """Return None: only the rows themselves can be counted."""


def queues(path: str) -> list[tuple[str, str]]:
    """Return the Kestrel queues that a path means, as directory and name: all of a directory, or one in it."""
    there = OS.status(path)
    if there is not None and there.is_dir:
        found = [(path, name) for name in queues_in(path)]
    else:
        directory, name = os.path.split(os.path.abspath(path))
        inside = OS.status(directory)
        if inside is None or not inside.is_dir or not name:
            return []
        found = [(directory, name)] if name in queues_in(directory) else []
    return [(place, name) for place, name in found if all(map(_is_kestrels, files_of(place, name)))]


def _is_kestrels(path: str) -> bool:
    """Return whether a file begins like one of Kestrel's: any name may be a queue's."""
    there = OS.status(path)
    if there is None or there.is_dir or "~~" in os.path.basename(path):
        return True
    try:
        magic = magic_of(path)
    except FileNotFoundError:  # a running Kestrel has removed it
        return True
    return not magic or magic in (READER_MAGIC, WRITER_MAGIC) or magic[0] in LAYOUTS


def rows_at(kind: Literal["textqueue", "kestrel"], paths: Sequence[str], way: Way) -> Rows:
    """Return the source of text queues or Kestrel queues.

    Raises:
        OptionError: the pattern matches none of them.
    """
    matches = matcher(way.pattern) if way.pattern is not None else None

    def taken(found: list[Any], name_of: Callable[[Any], str]) -> list[Any]:
        chosen = [each for each in found if matches is None or matches(name_of(each))]
        if found and not chosen:
            raise OptionError(
                f"pattern={way.pattern!r} matches none of {len(found)}; one of them is {name_of(found[0])!r}"
            )
        return chosen

    if kind == "textqueue":
        return Rows(
            TEXTQUEUE,
            lambda: taken(text_entries.files_in(paths), os.path.basename),
            text_entries.rows_of,
            text_entries.size_of,
        )
    return Rows(
        KESTREL,
        lambda: taken([queue for path in paths for queue in queues(path)], lambda queue: str(queue[1])),
        lambda queue: kestrel_items.rows_of(queue[0], queue=queue[1], on_damage=way.on_corruption),
        kestrel_items.size_of,
    )
