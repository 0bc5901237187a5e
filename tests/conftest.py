"""What every test may rely on: a Java for Spark, a budget for torture, hypothesis without a clock."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

NO_JAVA = (
    "no Java was found, and Spark's tests are never skipped: set JAVA_HOME or PATH to Java 17 or newer "
    "and run `make setup`, which writes .venv/java-home"
)

# Disks here may be slow: only `make torture` spends time on more examples, and none is failed for its seconds.
settings.register_profile("sej", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("torture", parent=settings.get_profile("sej"), max_examples=2000)
settings.load_profile("torture" if "SEJ_TORTURE_S" in os.environ else "sej")


MEMORY = "/dev/shm"
"""Tests wait for no disk if this file system in memory has room: power loss is simulated, or is the rig's affair."""
MEMORY_BYTES = 4 << 30


def pytest_configure() -> None:
    """Hand the Java that the set-up found to everything that this run starts."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each program that a test starts compiles every module again
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        os.environ["TMPDIR"] = MEMORY
        tempfile.tempdir = None
    remembered = Path(sys.prefix) / "java-home"
    if not os.environ.get("JAVA_HOME") and remembered.exists():
        os.environ["JAVA_HOME"] = remembered.read_text().strip()
    # Spark's workers must be this interpreter, wherever a test starts them from.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests share one session, so they share a worker too."""
    for item in items:
        if item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of Spark without a Java fails in one sentence, not in a launcher's traceback."""
    if item.get_closest_marker("spark") is not None:
        home = os.environ.get("JAVA_HOME")
        if not home or not (Path(home) / "bin" / "java").exists():
            pytest.fail(NO_JAVA, pytrace=False)


@pytest.fixture(scope="session")
def torture_s() -> float:
    """Seconds that one torture test may repeat for: short in `make test`, SEJ_TORTURE_S in `make torture`."""
    return float(os.environ.get("SEJ_TORTURE_S", "0.5"))


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, for the few tests that a file system in memory does not do for."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)
