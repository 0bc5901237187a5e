"""Find a Chromium for the tests of the web page and remember its path in `.venv/chromium`.

In this order: SEJ_CHROMIUM, then PATH; else Debian's package where we may install it. Printed by
`python -m tools.chromium`.
"""

import os
import shutil
import sys
from pathlib import Path

from tools import debian

DEBIAN_PACKAGE = "chromium"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = (
    "the tests of the web page need Chromium and none was found: set SEJ_CHROMIUM or PATH to one, or install "
    f"{DEBIAN_PACKAGE}; then run make again."
)


def choice() -> str:
    """All that the search depends on, as one string: while it stays, the remembered path stays."""
    return "|".join([os.environ.get("SEJ_CHROMIUM", ""), *(shutil.which(name) or "" for name in NAMES)])


def installed() -> Path | None:
    """The program in SEJ_CHROMIUM, or the first one on PATH."""
    named = os.environ.get("SEJ_CHROMIUM")
    found = next((path for name in ([named] if named else NAMES) if (path := shutil.which(name))), None)
    return None if found is None else Path(found)


def remember(venv: Path) -> bool:
    """Find a Chromium and write its path to `venv/chromium`; if none exists, report it and remove the file."""
    found = installed()
    if found is None and debian.install(DEBIAN_PACKAGE):
        found = installed()
    target = venv / "chromium"
    if found is None:
        target.unlink(missing_ok=True)
        print(MISSING, file=sys.stderr)
        return False
    target.write_text(f"{found}\n")
    return True


def remembered(venv: Path) -> Path | None:
    """Return the path that the set-up found, or None if there was none or it was removed since."""
    path = venv / "chromium"
    found = Path(path.read_text().strip()) if path.exists() else None
    return found if found is not None and found.exists() else None


if __name__ == "__main__":
    program = remembered(Path(__file__).resolve().parent.parent / ".venv")
    print(program) if program else sys.exit(MISSING)
