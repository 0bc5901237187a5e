"""How packages import: public names at their first use, compiled modules if they are installed."""

import importlib
import subprocess
import sys
import types

import pytest

from sej.imports import compiled, twin


@pytest.mark.parametrize("name", ["sej", "shard", "hub", "pipeline"])
def test_a_lazy_package_lists_its_names_and_no_other(name: str) -> None:
    package = importlib.import_module(name)
    modules = {found for found in dir(package) if isinstance(getattr(package, found), types.ModuleType)}
    assert dir(package) == sorted({*package.__all__, *modules})
    for export in package.__all__:
        assert getattr(package, export) is getattr(package, export)
    with pytest.raises(AttributeError, match=rf"^module '{name}' has no attribute 'typo'$"):
        _ = package.typo


def test_a_compiled_module_serves_if_it_is_built_and_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    built, missing = "sej.message", "sej.no_such_module"  # any existing module will do for a built one
    monkeypatch.delenv("SEJ_CODEC", raising=False)
    assert twin(built, "sej.errors").__name__ == built
    assert twin(missing, "sej.errors").__name__ == "sej.errors"
    assert compiled(missing) is None
    monkeypatch.setenv("SEJ_CODEC", "python")
    assert twin(built, "sej.errors").__name__ == "sej.errors"
    monkeypatch.setenv("SEJ_CODEC", "c")
    assert twin(built, "sej.errors").__name__ == built
    with pytest.raises(ImportError, match=missing):
        compiled(missing)
    monkeypatch.setenv("SEJ_CODEC", "C")
    with pytest.raises(ImportError, match=r"^SEJ_CODEC must be 'c', 'python' or unset, got 'C'$"):
        compiled(built)


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_importing_on_another_system_names_the_way_out(system: str) -> None:
    code = f"""
import sys, os, ctypes
sys.platform = {system!r}
for package in "sej", "hub", "kestrel", "pipeline", "shard", "textqueue":
    try:
        __import__(package)
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert (
        done.stdout.splitlines()
        == [f"SEJ runs on Linux, not on {system!r}: run it in a Linux container, or on Windows in WSL (wsl --install)"]
        * 6
    )
