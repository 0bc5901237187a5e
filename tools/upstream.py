"""The tests that kombu, dramatiq and Django ship for a transport, a broker and a backend, on ours.

Only their source archives have them, so pip downloads those of the versions in `.venv`. They are in no other run,
because they sleep. Django has them since version 6, which needs Python 3.12.

    .venv/bin/python -m tools.upstream [build/upstream]
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = ["pip", "--disable-pip-version-check", "--no-input", "download", "-q", "--no-deps", "--no-binary", ":all:"]
IMPORTED = {"kombu": ".", "dramatiq": ".", "django": "tests"}
"""The folder in the archive from which the tests import each other."""


def main() -> None:
    """Download, unpack and test; end with 1 if a test of any failed."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "upstream").absolute()
    codes = []
    for library, imported in IMPORTED.items():
        name = f"{library}-{version(library)}"
        if library == "django" and find_spec("django.tasks") is None:
            print(f"upstream: {name} has no tests of tasks: run `make upstream` with Python 3.12 or newer")
            continue
        subprocess.run([sys.executable, "-m", *PIP, "-d", folder, name.replace("-", "==")], check=True)
        shutil.unpack_archive(folder / f"{name}.tar.gz", folder, filter="data")
        path = os.pathsep.join([str(ROOT), str(folder / name / imported)])
        words = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", f"tests/contrib/upstream_{library}.py"]
        codes.append(subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False).returncode)
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
