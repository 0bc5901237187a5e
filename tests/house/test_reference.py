"""The reference: it builds without a warning, it has every public name, and docstrings name what calls raise."""

import ast
import importlib
import inspect
import re
import shutil
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.house.house import PACKAGES, ROOT, run, sources

DOORS = [*PACKAGES, "hub.wire", "kestrel.segmented", "sej.aio", "pipeline.jobs"]
# A wrong argument is a ValueError or a TypeError everywhere: sej/errors.py documents it once.
SAID_ONCE = {"ValueError", "TypeError"}
OURS = {str(path) for path in sources()}


def listed() -> set[str]:
    """What the pages of the reference name."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return {name for page in pages for name in re.findall(r"^\.\. [\w:]+:: (\S+)$", page.read_text(), re.MULTILINE)}


def test_it_builds_without_a_warning(tmp_path: Path) -> None:
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-b",
        "dummy",
        "-D",
        "smartquotes=0",  # a tenth of the time, and no warning comes from it
        ROOT / "docs",
        tmp_path,
    ]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr


def test_it_builds_without_the_extras(tmp_path: Path) -> None:
    """The pages that need Spark or gRPC, where neither is installed."""
    blind = """if True:
        import importlib.machinery, sys
        find = importlib.machinery.PathFinder.find_spec.__func__
        def find_spec(cls, name, path=None, target=None):
            missing = name.split(".")[0] in {"grpc", "grpc_health", "google", "numpy", "pyarrow", "pyspark"}
            return None if missing else find(cls, name, path, target)
        importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
        from sphinx.cmd.build import main
        sys.exit(main(sys.argv[1:]))
    """
    pages = tmp_path / "reference"
    pages.mkdir()
    for name in ("command", "pipeline", "wire"):
        shutil.copy(ROOT / "docs" / "reference" / f"{name}.md", pages)
    shutil.copy(ROOT / "docs" / "conf.py", tmp_path)
    for folder in ("_ext", "_static"):
        shutil.copytree(ROOT / "docs" / folder, tmp_path / folder)
    toctree = "```{toctree}\nreference/command\nreference/pipeline\nreference/wire\n```\n"
    (tmp_path / "index.md").write_text(f"# Pages\n\n{toctree}")
    command: list[str | Path] = [sys.executable, "-c", blind, "-q", "-W", "-D", "nitpicky=0", "-b", "text"]
    command += [tmp_path, tmp_path / "built"]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "session(app" in (tmp_path / "built" / "reference" / "pipeline.txt").read_text()
    assert "sej hub push" in (tmp_path / "built" / "reference" / "command.txt").read_text()
    assert not (tmp_path / "built" / "reference" / "wire.txt").exists()


@pytest.mark.parametrize("package", DOORS)
def test_it_has_every_public_name(package: str) -> None:
    module = importlib.import_module(package)
    own = {
        name
        for name in module.__all__
        if not isinstance(value := getattr(module, name), types.ModuleType)
        and getattr(value, "__name__", name) == name  # else a second name of something that is there
    }
    missing = {f"{package}.{name}" for name in own} - listed()
    assert not missing, "a public name has a line in docs/reference"


def functions(package: str) -> Iterator[tuple[str, Callable[..., Any], type | None]]:
    """Every public function, method, property and constructor of ours: its name, the function, its class."""
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value, None
        elif inspect.isclass(value):
            for member in (member for member in dir(value) if member == "__init__" or not member.startswith("_")):
                found = inspect.getattr_static(value, member)
                found = getattr(found, "fget", None) or getattr(found, "__func__", found)
                if inspect.isfunction(found) and found.__code__.co_filename in OURS:
                    yield f"{name}.{member}", found, value


def raised(function: Callable[..., Any], owner: type | None, seen: set[object]) -> set[str]:
    """The errors that a function raises by name, and those of the private ones of its module that it calls."""
    seen.add(function)
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    names: set[str] = set()
    caught: set[str] = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Raise) and node.exc is not None:
            error = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            names.add(getattr(error, "attr", getattr(error, "id", "")))
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            caught |= {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func).endswith("suppress"):
                caught |= {arg.id for arg in node.args if isinstance(arg, ast.Name)}
            beside: object = None
            if isinstance(node.func, ast.Name) and node.func.id.startswith("_"):
                beside = inspect.unwrap(function).__globals__.get(node.func.id)
            elif isinstance(node.func, ast.Attribute) and ast.unparse(node.func).startswith("self._"):
                beside = inspect.getattr_static(owner, node.func.attr, None)
                beside = getattr(beside, "__func__", beside)
            if inspect.isfunction(beside) and beside not in seen:
                names |= raised(beside, owner, seen)
    return {name for name in names if name[:1].isupper()} - caught


@pytest.mark.parametrize("package", DOORS)
def test_docstrings_name_what_calls_raise(package: str) -> None:
    silent = []
    for name, function, owner in functions(package):
        said = f"{function.__doc__ or ''} {owner.__doc__ or ''}" if owner else function.__doc__ or ""
        missing = raised(function, owner, set()) - SAID_ONCE - set(re.findall(r"\w+", said))
        if missing or not function.__doc__:
            silent.append(f"{package}.{name}: {', '.join(sorted(missing)) or 'no docstring'}")
    assert not silent, "a docstring, or its class, names what the call raises"
