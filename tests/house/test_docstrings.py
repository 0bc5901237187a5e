"""The examples in docstrings are true."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.house.house import ROOT, sources

WITH_EXAMPLES = [path for path in sources() if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in WITH_EXAMPLES])
def test_examples_are_true(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
