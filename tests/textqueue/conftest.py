"""What the tests of text queues share: a person who is slower than a clock. Those of Neovim need Neovim.

Without it they are left out, and ``tests/conftest.py`` reports that.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.textqueue.saving import MISSING


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here."""
    gone = [item for item in items if item.path.name == "test_neovim.py"] if "nvim" in MISSING else []
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]


@pytest.fixture(autouse=True)
def slower_than_a_tick() -> Iterator[None]:
    """Let each save of a person change the time of the file, as the saves of slower people do.

    On many file systems the time of a file has ticks of 4 or 10 ms. A save within the tick of the last edit can look as
    if nothing had changed: what that means is tested by setting the time back.
    """

    def later(write: Callable[..., int]) -> Callable[..., int]:
        def save(path: Path, *data: Any, **options: Any) -> int:
            before = path.stat().st_mtime_ns if path.exists() else None
            size = write(path, *data, **options)
            while path.stat().st_mtime_ns == before:
                os.utime(path)
            return size

        return save

    with pytest.MonkeyPatch.context() as patched:
        for name in ("write_bytes", "write_text"):
            patched.setattr(Path, name, later(getattr(Path, name)))
        yield
