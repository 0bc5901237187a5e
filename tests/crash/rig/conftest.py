"""The rig runs in ``make torture`` where the machine has what it needs; elsewhere its tests are named, not run."""

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.rig.machine import FILE_SYSTEMS, compile_device, missing

_NOT_RUN = pytest.StashKey[Counter[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and count why."""
    left_out = config.stash.setdefault(_NOT_RUN, Counter())
    gone = []
    for item in items:
        if item.get_closest_marker("rig") is None:
            continue
        reason = _reason(item)
        if reason is not None:
            gone.append(item)
            left_out[reason] += 1
    if gone:
        config.hook.pytest_deselected(items=gone)
        lost = set(gone)
        items[:] = [item for item in items if item not in lost]


def _reason(item: pytest.Item) -> str | None:
    if "SEJ_TORTURE_S" not in os.environ:
        return "they run in `make torture` only"
    assert isinstance(item, pytest.Function)
    system = item.callspec.params["file_system"]
    assert system in FILE_SYSTEMS
    lacking = missing(str(system))
    return None if lacking is None else f"missing: {lacking}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not run, and why."""
    for reason, count in config.stash.get(_NOT_RUN, Counter[str]()).items():
        terminalreporter.write_line(f"{count} tests on a block device of tests/crash/rig were not run: {reason}")


@pytest.fixture(scope="session")
def device_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device, compiled."""
    return compile_device(tmp_path_factory.mktemp("rig"))
