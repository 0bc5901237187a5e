"""Imports point down: the contracts in pyproject.toml hold."""

import sys
from pathlib import Path

from tests.house.house import ROOT, run


def test_contracts_hold() -> None:
    done = run([Path(sys.executable).parent / "lint-imports", "--no-cache"], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
