"""The reference: it builds without a warning, and it has every public name."""

import importlib
import re
import shutil
import sys
import types
from pathlib import Path

import pytest

from tests.house.house import PACKAGES, ROOT, run

DOORS = [*PACKAGES, "hub.wire", "kestrel.segmented", "sej.aio", "pipeline.jobs"]


def listed() -> set[str]:
    """What the pages of the reference name."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    named = r"^(?:\.\. [\w:]+:: )?((?:sej|shard|hub|textqueue|kestrel|pipeline)\.\S+)$"
    return {name for page in pages for name in re.findall(named, page.read_text(), re.MULTILINE)}


@pytest.mark.long
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
