"""One Spark session for all tests of Spark, and journals to read with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sej

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Small and quick to start; benchmarks/spark.py measures with other settings.
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session: two cores, everything it writes in a temporary folder."""
    import pipeline

    here = tmp_path_factory.mktemp("spark")
    conf = {**CONF, "spark.sql.warehouse.dir": str(here / "warehouse"), "spark.local.dir": str(here / "local")}
    session = pipeline.session("tests", master="local[2]", conf=conf)
    session.sparkContext.setLogLevel("OFF")  # what is tested here includes many failures
    yield session
    session.stop()


BASE_NS = 1_700_000_000_000_000_000


def fill(path: Path, count: int, *, first: int = 0, step_ns: int = 10**9, tag: str = "v") -> None:
    """Append count messages: value tag-number, key k-number, a second apart, type number mod 3."""
    numbers = range(first, first + count)
    with sej.Writer(path) as writer:
        writer.append_many(
            [b"%s-%d" % (tag.encode(), number) for number in numbers],
            [b"k-%d" % (number % 7) for number in numbers],
            [number % 3 for number in numbers],
            [BASE_NS + number * step_ns for number in numbers],
        )


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A SEJ directory with 100 messages, a second apart."""
    fill(tmp_path / "journal", 100)
    return tmp_path / "journal"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A tree of four shards, ``orders``, with 10, 20, 30 and 40 messages."""
    for index in range(4):
        fill(tmp_path / "tree" / f"orders.2.{index:03x}", 10 * (index + 1), tag=f"s{index}")
    return tmp_path / "tree"


@pytest.fixture
def hub_root(tmp_path: Path) -> Path:
    """A hub's root: clients ``berlin`` and ``tokyo`` with two shards each, and ``berlin.plain.log``."""
    root = tmp_path / "hub"
    for client in ("berlin", "tokyo"):
        for index in range(2):
            fill(root / f"{client}.orders.1.{index:03x}", 5 + index, tag=client)
    fill(root / "berlin.plain.log", 3, tag="plain")
    (root / ".hub").touch()
    return root
