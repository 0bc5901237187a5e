"""A standalone cluster on this machine: a master, and two workers that do not see the driver's disk or each other's.

Each worker has a mount namespace of its own, with an empty file system in memory in place of the folder ``disk``. If
this machine permits no namespaces, ``disk`` is a folder in the working directory of each process, which Spark is given
as ``/proc/self/cwd/disk``.

Run as a program, it copies journals from a hub to the hub in a session on a cluster, until it is killed:
``python -m tests.pipeline.cluster MASTER HUB CHECKPOINT``.
"""

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import pipeline
from tests.hub.support import ROOT, until
from tests.quick_spark import CONF, JAVA_OPTIONS

WORKERS = {"worker-1": "127.0.0.2", "worker-2": "127.0.0.3"}
"""Each has an address of its own: executors with one address read each other's shuffles from the disk."""
CLASSES = "org.apache.spark.deploy"
HOME = Path(pyspark.__path__[0])
DAEMON = {
    "SPARK_HOME": str(HOME),
    "SPARK_SCALA_VERSION": next(HOME.glob("jars/spark-core_*.jar")).name.split("_")[1].split("-")[0],
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
}
"""The environment of the master and the workers, as ``spark-class`` sets it."""
EXECUTOR = b"CoarseGrainedExecutorBackend"
HUB = [sys.executable, "-c", "from hub.cli import app; app(prog_name='sej hub')"]
NAMESPACES = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])
EMPTY = 'mount -t tmpfs -o size=256m tmpfs "$0" && cd "$0" && exec "$@"'
"""The shell's part of a worker: its own disk, then the worker's program."""
CLUSTER_CONF = {
    **CONF,
    "spark.log.level": "OFF",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1",
}


class Cluster:
    """A running cluster.

    Attributes:
        disk: a path at which the driver and each worker see different folders.
        near: the driver's folder, as this process sees it.
        master: its address.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own = folder / "disk"
        self._own.mkdir()
        self._separate = next((way for way in NAMESPACES if _permitted(way, self._own)), None)
        self.disk = self.near = self._own
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._start("master", [], "master.Master", "127.0.0.1")
        self.master = self._logged("master", "Starting Spark master at ")
        for name in WORKERS:
            self.start_worker(name)

    def start_worker(self, name: str) -> None:
        """Start a worker, with an empty disk."""
        apart = [] if self._separate is None else [*self._separate, "sh", "-c", EMPTY, str(self._own)]
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._own / name)]
        self._start(name, apart, "worker.Worker", WORKERS[name], *size, self.master)

    def kill_worker(self, name: str) -> None:
        """Kill a worker and its executors."""
        os.killpg(self._processes[name].pid, signal.SIGKILL)
        self._processes[name].wait()

    def executors(self, name: str) -> list[int]:
        """Return the processes of a worker's executors."""
        threads = Path(f"/proc/{self._processes[name].pid}/task").glob("*/children")
        children = [int(child) for thread in threads for child in _about(thread).split()]
        return [child for child in children if EXECUTOR in _about(Path(f"/proc/{child}/cmdline"))]

    def session(self) -> SparkSession:
        """Return a session of this process on the cluster; a session on another master is stopped."""
        if (running := SparkSession.getActiveSession()) is not None:
            if running.sparkContext.master == self.master:
                return running
            running.stop()
        spark = session(self.master)
        if self._separate is None:
            assert spark.sparkContext._jvm is not None
            here = spark.sparkContext._jvm.System.getProperty("user.dir")
            self.disk, self.near = Path("/proc/self/cwd/disk"), Path(here, "disk")
        return spark

    def stop_session(self) -> None:
        """Stop this process's session; its executors end."""
        if (running := SparkSession.getActiveSession()) is not None:
            running.stop()

    def close(self) -> None:
        """Stop all processes."""
        for process in self._processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, before: list[str], kind: str, host: str, *arguments: str) -> None:
        command = [*_java(), f"{CLASSES}.{kind}"]
        network = ["--host", host, "--port", "0", "--webui-port", "0"]
        environment = {**DAEMON, "SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(self._own / "local")}
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [*before, *command, *network, *arguments],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _logged(self, name: str, before: str) -> str:
        log = self._folder / f"{name}.log"
        until(lambda: before in log.read_text() or self._processes[name].poll() is not None)
        text = log.read_text()
        assert before in text, text
        return text.split(before, 1)[1].split()[0]


def session(master: str) -> SparkSession:
    """Return a session on a cluster, with one task at a time on each worker."""
    return pipeline.session("cluster", master=master, conf=CLUSTER_CONF)


@contextmanager
def hub_process(root: Path, address: str) -> Iterator["subprocess.Popen[str]"]:
    """A hub in a process of its own; killed at the end."""
    process = subprocess.Popen([*HUB, "serve", "--address", address, str(root)], cwd=ROOT, text=True, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def driver_process(cluster: Cluster, address: str, checkpoint: str) -> Iterator[None]:
    """A driver that copies until it is killed, at the end."""
    command = [sys.executable, "-m", "tests.pipeline.cluster", cluster.master, address, checkpoint]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        yield
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its JVM is in its group
        process.wait()


def copy(spark: SparkSession, address: str, checkpoint: str, *, once: bool) -> StreamingQuery:
    """Start to copy the client ``producer`` of a hub to its client ``spark``, to the end or until it is stopped."""
    frame = spark.readStream.format("sej").options(hub=address, maxMessagesPerTrigger="200").load("producer.orders.1")
    writer = frame.writeStream.format("sej").options(hub=address, prefix="orders", bits="1")
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer).start("spark")


def _about(path: Path) -> bytes:
    """Read a file about a process or a thread; nothing, if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return path.read_bytes()
    return b""


@functools.cache
def _java() -> list[str]:
    """Return the command of a daemon, without its class: ``spark-class`` starts a JVM for it each time."""
    java = [str(Path(os.environ["JAVA_HOME"], "bin", "java")), *JAVA_OPTIONS.split(), "-cp", str(HOME / "jars" / "*")]
    launcher = [*java, "org.apache.spark.launcher.Main", f"{CLASSES}.master.Master"]
    printed = subprocess.run(launcher, env={**os.environ, **DAEMON}, capture_output=True, text=True, check=True).stdout
    return printed.strip("\0\n").split("\0")[:-1]


def _permitted(way: list[str], folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    done = subprocess.run([*way, "sh", "-c", EMPTY, str(folder), "true"], capture_output=True, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    copy(session(sys.argv[1]), *sys.argv[2:], once=False).awaitTermination()
