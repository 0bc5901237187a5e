"""What the checks of the house know: the root, the packages, and how a program is run from outside."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# From the ground up, in import order.
PACKAGES = ("sej", "shard", "textqueue", "kestrel", "hub", "pipeline")

_HUNG_UP = re.compile(
    r"Traceback \(most recent call last\):\r?\n"
    r"(?:  File \"[^\"]*pyspark/daemon\.py\"[^\n]*\n(?:    [^\n]*\n)?)*(?:BrokenPipeError|\s*\Z)"
)
"""The daemon may still be printing when its program has ended: then the output ends in the middle of it."""


def has_traceback(printed: str) -> bool:
    """Whether a program showed one, but for that of the daemon by which Spark plans, when the JVM hangs up first."""
    return "Traceback" in _HUNG_UP.sub("", printed)


def run(command: Sequence[str | Path], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program elsewhere than in the tree, with no input; the caller judges its exit code."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def python(code: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter of this environment."""
    return run([sys.executable, "-c", code], cwd, **env)


def sources() -> Iterator[Path]:
    """Every Python file of the packages that is not generated."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "_pb2" not in path.name)


def has_compiler(tmp_path: Path) -> bool:
    """Whether a C compiler with Python's headers is at hand, found by compiling: asking for its name proves little."""
    compiler = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc")
    words = compiler.split()
    if shutil.which(words[0]) is None:
        return False
    source = tmp_path / "probe.c"
    source.write_text("#include <Python.h>\n")
    include = sysconfig.get_path("include")
    return run([*words, f"-I{include}", "-c", source, "-o", tmp_path / "probe.o"], tmp_path).returncode == 0
