"""The tests that kombu has for its transports, in the version in `.venv`, against ours.

Only its source archive has them, so pip downloads that. They are in no other run, because they sleep.

    .venv/bin/python -m tools.upstream [build/upstream]
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = ["pip", "--disable-pip-version-check", "--no-input", "download", "-q", "--no-deps", "--no-binary", ":all:"]


def main() -> None:
    """Download, unpack and test; end with the exit code of the tests."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "upstream").absolute()
    name = f"kombu-{version('kombu')}"
    subprocess.run([sys.executable, "-m", *PIP, "-d", folder, name.replace("-", "==")], check=True)
    shutil.unpack_archive(folder / f"{name}.tar.gz", folder, filter="data")
    path = os.pathsep.join([str(ROOT), str(folder / name)])
    words = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "tests/contrib/upstream_kombu.py"]
    sys.exit(subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False).returncode)


if __name__ == "__main__":
    main()
