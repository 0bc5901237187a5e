"""One test needs a small file system of its own. If none can be mounted, the test is reported and not run."""

import subprocess

import pytest

from tests.queue.support import SMALL_FILE_SYSTEM, FakeClock

_LACKING = pytest.StashKey[str]()
_TEST = "test_a_real_small_file_system"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the test out if this machine cannot mount."""
    found = [item for item in items if item.name == _TEST]
    if found and (lacking := _lacking()) is not None:
        config.stash[_LACKING] = lacking
        config.hook.pytest_deselected(items=found)
        items[:] = [item for item in items if item not in found]


def _lacking() -> str | None:
    try:
        done = subprocess.run([*SMALL_FILE_SYSTEM, "/tmp", "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "the program unshare"
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not run, and why."""
    if _LACKING in config.stash:
        terminalreporter.write_line(f"{_TEST} was not run, it needs a tmpfs of its own: {config.stash[_LACKING]}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
