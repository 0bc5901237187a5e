"""What `sej tq list` prints of a queue."""

import json
from pathlib import Path
from typing import Any

from tests.cli.command import sej


def rows(path: Path | str, *words: str) -> list[dict[str, Any]]:
    """The messages, with the options of words."""
    return [json.loads(line) for line in sej("tq", "list", "--json", *words, path).stdout.splitlines()]


def name_of(path: Path, text: str) -> str:
    """The name of the message of a text."""
    (row,) = [row for row in rows(path, "--status", "all") if row["value"] == text]
    return f"{row['position']}:{row['hash']}"
