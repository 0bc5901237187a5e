"""Some tests need what a machine may lack. Those that cannot run are reported by name, and not run."""

import subprocess

import pytest

from tests.queue.support import FAKETIME, SMALL_FILE_SYSTEM, FakeClock

_LACKING = pytest.StashKey[dict[str, str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests for which this machine lacks something."""
    needs = {"test_a_real_small_file_system": _small_file_system, "test_a_clock_that_is_set_under_a_process": _faketime}
    names = {item.name for item in items} & needs.keys()
    lacking = {name: why for name in names if (why := needs[name]()) is not None}
    found = [item for item in items if item.name in lacking]
    if found:
        config.stash[_LACKING] = lacking
        config.hook.pytest_deselected(items=found)
        items[:] = [item for item in items if item not in found]


def _small_file_system() -> str | None:
    try:
        done = subprocess.run([*SMALL_FILE_SYSTEM, "/tmp", "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "the program unshare"
    return f"a tmpfs of its own: {done.stderr.strip() or done.returncode}" if done.returncode else None


def _faketime() -> str | None:
    return None if FAKETIME.exists() else f"{FAKETIME}, of Debian's package libfaketime"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not run, and why."""
    for name, why in config.stash.get(_LACKING, {}).items():
        terminalreporter.write_line(f"{name} was not run, it needs {why}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
