"""What every test may rely on: a Java for Spark, a budget for torture, hypothesis without a clock."""

import asyncio
import gc
import importlib
import inspect
import itertools
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import chdir, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import REFERENCE, examples
from tests.quick_spark import JAVA_OPTIONS, SHARED_CONF
from tests.spark_python import forking_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

NO_JAVA = (
    "no Java was found, and Spark's tests are never skipped: set JAVA_HOME or PATH to Java 17 or newer "
    "and run `make setup`, which writes .venv/java-home"
)

NO_CHROMIUM = (
    "no Chromium was found, and the tests of the web page are never skipped: install Debian's package chromium or set "
    "SEJ_CHROMIUM, and run `make setup`, which writes .venv/chromium"
)

# Disks here may be slow: only `make torture` spends time on more examples, and none is failed for its seconds.
settings.register_profile("sej", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("torture", parent=settings.get_profile("sej"), max_examples=2000)
settings.register_profile("reference", parent=settings.get_profile("sej"), max_examples=examples(100))
settings.load_profile("torture" if "SEJ_TORTURE_S" in os.environ else "reference" if REFERENCE else "sej")


MEMORY = "/dev/shm"
"""Tests wait for no disk if this file system in memory has room: power loss is simulated, or is the rig's affair."""
MEMORY_BYTES = 4 << 30

RUN = "SEJ_TEST_RUN"
"""Every process that a run starts has this variable in its environment, with the run's own value."""
ENDING_S = 60.0


def pytest_configure(config: pytest.Config) -> None:
    """Hand the Java that the set-up found to everything that this run starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it, so its children too
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each program that a test starts compiles every module again
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_BYTES:
        os.environ["TMPDIR"] = MEMORY
        tempfile.tempdir = None
    remembered = Path(sys.prefix) / "java-home"
    if not os.environ.get("JAVA_HOME") and remembered.exists():
        os.environ["JAVA_HOME"] = remembered.read_text().strip()
    for name in ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"):
        os.environ.setdefault(name, JAVA_OPTIONS)
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = uuid.uuid4().hex
    # Spark's workers must be this interpreter, wherever a test starts them from.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for garbage in what a test makes only: the modules and the items, which stay, are a million objects."""
    gc.disable()
    try:
        import_in_turn(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def import_in_turn(config: pytest.Config) -> None:
    """Let each process of pytest-xdist begin with other modules, and find those of the others compiled.

    In a new clone, else, each of them would rewrite the assertions of every module, which takes twice as long as all
    the rest of a collection.
    """
    if not hasattr(config, "workerinput"):
        return
    given = [Path(name.partition("::")[0]) for name in config.args]
    found = [path for top in given for path in (sorted(top.rglob("test_*.py")) if top.is_dir() else [top])]
    first = len(found) * int(config.workerinput["workerid"].removeprefix("gw")) // config.workerinput["workercount"]
    for path in found[first:] + found[:first]:
        with suppress(Exception, pytest.skip.Exception):  # the collection imports it again, and reports this
            importlib.import_module(".".join(path.absolute().relative_to(config.rootpath).with_suffix("").parts))


def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> "Scheduling | None":
    """Divide the tests among the processes as ``tests/scheduling.py`` says."""
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.scheduling import Neighbours

    return Neighbours(config, log)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long to make is made once: tests that need the same wheel, or Spark's JVM, run in the same process."""
    for item in items:
        if "wheel" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("wheel"))
        elif item.get_closest_marker("browser") is not None:
            item.add_marker(pytest.mark.xdist_group("browser"))
        elif "spark_home" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("spark") is not None:  # it starts JVMs of its own
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test of Spark without a Java fails in one sentence, not in a launcher's traceback."""
    if item.get_closest_marker("spark") is not None:
        home = os.environ.get("JAVA_HOME")
        if not home or not (Path(home) / "bin" / "java").exists():
            pytest.fail(NO_JAVA, pytrace=False)
    if item.get_closest_marker("browser") is not None:
        chromium = Path(sys.prefix) / "chromium"
        if not chromium.exists() or not Path(chromium.read_text().strip()).exists():
            pytest.fail(NO_CHROMIUM, pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function; one that hangs fails."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def limited() -> None:
        async with asyncio.timeout(ENDING_S):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})

    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(limited())
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the editors and programs with which the tests of text queues saved, and those that are not installed."""
    reports = [report for group in ("passed", "failed") for report in terminalreporter.getreports(group)]
    if any("/test_storm.py" in report.nodeid for report in reports):
        from tests.textqueue.saving import MISSING, SAVERS

        names = [*SAVERS, *["git"] * ("git" not in MISSING)]
        terminalreporter.write_line(f"the editing storm saved with: {', '.join(names)}")
        if MISSING:
            terminalreporter.write_line(f"not installed, so the editing storm ran without: {', '.join(MISSING)}")
        if "nvim" in MISSING:
            terminalreporter.write_line("tests/textqueue/test_neovim.py was not run: Neovim is not installed")
    if any("promtool" in str(report.longrepr) for report in terminalreporter.getreports("skipped")):
        terminalreporter.write_line("the alert rules were not run, promtool is missing: apt-get install prometheus")
    skipped = [str(report.longrepr) for report in terminalreporter.getreports("skipped")]
    for name, package in (("node", "nodejs"), ("go", "golang-go")):
        if any(f"HTTP was not run, {name} is" in reason for reason in skipped):
            terminalreporter.write_line(f"no client over HTTP in {name} was run: apt-get install {package}")


def left_behind() -> dict[int, str]:
    """The processes, with their command lines, that this run started and that still run; none without Linux's /proc."""
    mark, found = f"{RUN}={os.environ[RUN]}".encode(), {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = os.fsdecode((folder / "cmdline").read_bytes().replace(b"\0", b" "))
    return found


@pytest.hookimpl(trylast=True)  # after pytest-xdist has ended its workers
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what the tests of all workers left behind, and fail; a JVM may take a while to end."""
    if session.config.getoption("dist", "no") == "no" or hasattr(session.config, "workerinput"):
        return  # this process has a fork server or a JVM until it ends
    deadline = time.monotonic() + ENDING_S
    while (left := left_behind()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for number, command in left.items():
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        print(f"\na test left a process behind: {command}", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def torture_s() -> float:
    """Seconds that one torture test may repeat for: short in `make test`, SEJ_TORTURE_S in `make torture`."""
    return float(os.environ.get("SEJ_TORTURE_S", "0.3"))


@pytest.fixture(scope="session")
def brief_s(torture_s: float) -> float:
    """As torture_s, but a tenth of it in `make test`, where another test has such cases, the same ones each time."""
    return torture_s if "SEJ_TORTURE_S" in os.environ else torture_s / 10


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where Spark writes, in ``here`` where its JVM is started, and ``python``, which the shared session starts."""
    home = tmp_path_factory.mktemp("spark")
    (home / "here").mkdir()
    with forking_python(home):
        yield home
        from pyspark.sql import SparkSession

        if (session := SparkSession.getActiveSession()) is not None:
            session.stop()


@pytest.fixture
def spark(spark_home: Path) -> "SparkSession":
    """The session that all tests share: two cores, everything it writes in a temporary folder.

    A test may stop it. The next one gets a new session in the same JVM.
    """
    import pipeline

    folders = {"spark.sql.warehouse.dir": str(spark_home / "warehouse"), "spark.local.dir": str(spark_home / "local")}
    with chdir(spark_home / "here"), pytest.MonkeyPatch.context() as patch:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # of the session, not of what a test starts
            patch.setenv(name, str(spark_home / "python"))
        session = pipeline.session("tests", master="local[2]", conf={**SHARED_CONF, **folders})
    session.sparkContext.setLogLevel("OFF")  # what is tested here includes many failures
    return session


@pytest.fixture
def spark_directory(spark: "SparkSession", spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the shared session, empty, and now of this process too.

    It is for scripts. Their last line leaves the session running: a new one takes longer than most scripts.
    """
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    here = spark_home / "here"
    for entry in here.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    monkeypatch.chdir(here)
    return here


_numbers = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """An empty folder. For the number of each, pytest's fixture of this name would list all earlier ones."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f"{next(_numbers)}_{name}"
    path.mkdir(0o700)
    return path


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine for a server that starts later, or again: no other program gets it meanwhile.

    A socket has it that does not listen, and shares it with a socket that has one of these options, as servers do.
    """
    with socket.socket() as reserved:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            reserved.setsockopt(socket.SOL_SOCKET, option, 1)
        reserved.bind(("127.0.0.1", 0))
        number: int = reserved.getsockname()[1]
        yield number


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on a disk, for the few tests that a file system in memory does not do for."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)
