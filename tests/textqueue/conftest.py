"""The tests of Neovim need Neovim: without it they are left out, and ``tests/conftest.py`` reports that."""

import pytest

from tests.textqueue.saving import MISSING


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here."""
    gone = [item for item in items if item.path.name == "test_neovim.py"] if "nvim" in MISSING else []
    if gone:
        config.hook.pytest_deselected(items=gone)
        items[:] = [item for item in items if item not in gone]
