"""The oldest allowed dependencies in an environment of their own, and a quick part of the tests with them.

The lower bounds in `pyproject.toml` become exact versions, of the build tools too. The wheel is built in that
environment, so that the tests that start the command use it.

    .venv/bin/python -m tools.oldest [build/oldest]
"""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
NAME = "sej-journals"
# Spark's extra allows one version only, which all other tests use.
EXTRAS = (
    "celery", "deltalake", "django", "dramatiq", "formats", "hub", "huey", "iceberg", "opentelemetry", "pandas",
    "polars", "sql", "tables", "ui",
)  # fmt: skip
RUNNERS = ("hypothesis", "pexpect", "pytest", "pytest-timeout", "pytest-xdist")
TESTS = (
    "tests/cli",
    "tests/contrib/test_celery.py",
    "tests/contrib/test_django.py",
    "tests/contrib/test_dramatiq.py",
    "tests/contrib/test_forward.py",
    "tests/contrib/test_huey.py",
    "tests/contrib/test_kombu.py",
    "tests/sej/test_codec.py",
    "tests/sej/test_watch.py",
    "tests/hub/test_cli.py",
    "tests/hub/test_http.py",
    "tests/hub/test_monitoring.py",
    "tests/hub/page/test_changes.py",
    "tests/hub/page/test_guard.py",
    "tests/hub/page/test_pages.py",
    "tests/pipeline/test_avro.py",
    "tests/pipeline/test_predicates.py",
    "tests/pipeline/test_ship.py",
    "tests/pipeline/test_table.py",
)
WITHOUT = (
    # Which modules a command loads depends on the libraries: the newest ones count.
    "--deselect=tests/cli/test_start.py::test_a_short_command_loads_nothing_heavy",
)


def oldest(requirements: list[str]) -> Iterator[str]:
    """Yield `name==version` for each requirement of this system, with the version of its lower bound.

    An extra that includes another one of this project yields nothing for it.
    """
    for requirement in map(Requirement, requirements):
        if requirement.name == NAME:
            continue
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        bounds = [bound.version for bound in requirement.specifier if bound.operator == ">="]
        if len(bounds) != 1:
            sys.exit(f"pyproject.toml: expected one lower bound (>=) in {str(requirement)!r}, got {len(bounds)}")
        yield f"{requirement.name}=={bounds[0]}"


def main() -> None:
    """Install, check and test; end with the first command that fails."""
    venv = Path(sys.argv[1] if len(sys.argv) > 1 else "build/oldest").absolute()
    os.chdir(ROOT)
    settings = tomllib.loads(Path("pyproject.toml").read_text())
    project = settings["project"]
    extras = project["optional-dependencies"]
    tests = [each for each in extras["checks"] + extras["test"] if Requirement(each).name in RUNNERS]
    build = list(oldest(settings["build-system"]["requires"]))
    wanted = list(oldest([*project["dependencies"], *(each for name in EXTRAS for each in extras[name]), *tests]))
    python = venv / "bin" / "python"
    pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq"]
    run([sys.executable, "-m", "venv", "--clear", venv])
    run([*pip, *build, *wanted])
    # With its dependencies: pip refuses if a lower bound contradicts that of another package.
    run([*pip, "--no-build-isolation", f".[{','.join(EXTRAS)}]", *wanted])
    run([python, "-m", "pip", "--disable-pip-version-check", "check"])
    print(f"oldest: {' '.join(wanted)}", flush=True)
    run([python, "-m", "pytest", "-q", "-n", "logical", "--dist", "loadgroup", "-m", "not long", *WITHOUT, *TESTS])


def run(command: list[str | Path]) -> None:
    """Run, or end with the command that failed."""
    # A command of this environment comes first, because tests start `sej` by its name.
    path = f"{command[0]!s}".rpartition("/")[0] + os.pathsep + os.environ["PATH"]
    if (code := subprocess.run(command, env={**os.environ, "PATH": path}, check=False).returncode) != 0:
        sys.exit(f"oldest: {' '.join(map(str, command))} ended with {code}")


if __name__ == "__main__":
    main()
