"""What the tests of text queues share: a person who is slower than a clock.

Those that need Neovim or a container are left out without them. The report names them.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import textqueue
from tests.textqueue.claiming import CONTAINER
from tests.textqueue.saving import MISSING

_CONTAINERS = "test_containers.py"
_GONE = pytest.StashKey[set[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here."""
    names = {item.path.name for item in items}
    lacking = {"test_neovim.py"} if "nvim" in MISSING else set()
    if _CONTAINERS in names and _no_container():
        lacking.add(_CONTAINERS)
    gone = [item for item in items if item.path.name in lacking]
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]
        config.stash[_GONE] = {item.path.name for item in gone}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why the tests of containers were not run."""
    if _CONTAINERS in config.stash.get(_GONE, set()):
        terminalreporter.write_line(f"{_CONTAINERS} was not run, it needs a PID namespace: {_no_container()}")


@cache
def _no_container() -> str:
    """Return why no PID namespace can be made here; empty: it can."""
    try:
        done = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "the program unshare is not installed"
    return (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""


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
        # They write whole messages, and would wait for the last one. test_settling.py tests the wait.
        patched.setitem(textqueue.TextQueue.__init__.__kwdefaults__ or {}, "settle_s", 0.0)
        yield


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A queue file that does not exist yet."""
    return tmp_path / "jobs.tq"
