"""The front doors: `__all__` is exact in every module that has one, and importing costs nothing."""

import importlib
import pkgutil
import symtable
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.house import PACKAGES, ROOT, python

HEAVY = ("grpc", "google.protobuf", "pyspark", "pyarrow", "numpy", "pandas", "rich", "portalocker")
NOT_TO_APPEND = (
    *("asyncio", "dataclasses", "datetime", "importlib.metadata", "inspect", "json", "logging", "mmap", "random"),
    *("signal", "socket", "subprocess", "tempfile", "sej.queue", "sej.reading", "sej.journal.cursor"),
    *("sej.journal.repair", "sej.journal.retention", "sej.writing.exactly_once"),
)


DOORS = {
    *PACKAGES,
    "hub.wire",
    "kestrel.segmented",
    "sej.aio",
    "sej.codec",
    "sej.contrib.logging",
    "sej.contrib.outbox",
    "sej.contrib.inbox",
    "sej.contrib.django.backend",
    "sej.contrib.dramatiq",
    "sej.contrib.forward",
    "sej.contrib.huey",
    "sej.contrib.kombu",
    "sej.contrib.opentelemetry",
    "hub.wire.metrics",
}


def _modules() -> Iterator[str]:
    """Every module but the compiled and generated ones."""
    for package in PACKAGES:
        if not (ROOT / package / "__init__.py").exists():
            continue  # tests/house/test_packages.py fails for it
        yield package
        for info in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if not any(part.startswith("_") or "_pb2" in part for part in info.name.split(".")):
                yield info.name


# A public module says what it exports; so does one that shows names of another module. The others are internal.
MODULES = sorted(DOORS | {name for name in _modules() if hasattr(importlib.import_module(name), "__all__")})


def defined(module: types.ModuleType) -> set[str]:
    """The public names that the module's own source defines at its top level, not those that it imports."""
    assert module.__file__ is not None
    symbols = symtable.symtable(Path(module.__file__).read_text(), module.__file__, "exec").get_symbols()
    names = {symbol.get_name() for symbol in symbols if symbol.is_assigned() and not symbol.is_imported()}
    return {name for name in names & vars(module).keys() if not name.startswith("_")}


def exports_problems(module: types.ModuleType) -> Iterator[str]:
    """What is wrong with the ``__all__`` of a module."""
    if "__all__" not in vars(module):
        yield f"{module.__name__} has no __all__"
        return
    exported: list[str] = module.__all__
    if len(exported) > len(set(exported)):
        yield f"{module.__name__}.__all__ has a name twice"
    if missing := [export for export in exported if not hasattr(module, export)]:
        yield f"{module.__name__}.__all__ names what is not there: {missing}"
    if forgotten := defined(module) - set(exported):
        yield f"{module.__name__}.__all__ lacks public names, to be exported or to begin with _: {forgotten}"


def test_all_is_exact() -> None:
    assert not [problem for name in MODULES for problem in exports_problems(importlib.import_module(name))]


def test_a_wrong_all_is_found() -> None:
    module = types.ModuleType("wrong")
    assert list(exports_problems(module)) == ["wrong has no __all__"]
    vars(module).update(__all__=["none", "HEAVY", "HEAVY"], HEAVY=HEAVY, DOORS=DOORS, __file__=__file__)
    assert [problem.split(" ", 1)[1].split(":")[0] for problem in exports_problems(module)] == [
        "has a name twice",
        "names what is not there",
        "lacks public names, to be exported or to begin with _",
    ]


@pytest.mark.parametrize("package", ["sej", "shard", "textqueue", "kestrel", "hub"])
def test_importing_loads_nothing_heavy(package: str, tmp_path: Path) -> None:
    done = python(f"import sys, {package}; print('\\n'.join(sys.modules))", tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not [module for module in HEAVY if module in loaded]


def test_the_first_append_loads_what_it_needs(tmp_path: Path) -> None:
    program = """
import builtins, sys, portalocker
known = set(sys.modules)  # a writer holds a lock, so it needs all of these
real, ours = builtins.__import__, set()  # but we must not import them ourselves
def note(name, *rest):
    if rest and rest[0]["__name__"].startswith("sej"):
        ours.update([name, *(f"{name}.{part}" for part in rest[2] or ())])
    return real(name, *rest)
builtins.__import__ = note
import sej
for _ in range(2):
    with sej.Writer("j") as writer:
        writer.append(b"value", b"key")
print("\\n".join(set(sys.modules) - known | ours))
"""
    done = python(program, tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not [module for module in NOT_TO_APPEND if module in loaded]


@pytest.mark.parametrize("name", ["sej", "shard", "hub", "textqueue", "pipeline"])
def test_no_module_hides_a_public_name(name: str) -> None:
    """Importing a module binds its name in its package: one that is called like a lazy function would replace it."""
    package = importlib.import_module(name)
    modules = {found.name for found in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(package.__all__)


@pytest.mark.parametrize("name", ["sej.aio", "sej.codec", "hub.wire", "kestrel.segmented"])
def test_a_public_module_needs_no_import_of_its_own(name: str, tmp_path: Path) -> None:
    package = name.partition(".")[0]
    done = python(f"import {package}; print({name}.__name__, {name.rpartition('.')[2]!r} in dir({package}))", tmp_path)
    assert done.stdout.split() == [name, "True"], done.stderr
