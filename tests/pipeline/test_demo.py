"""The demo's stream, over a hub's root."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hub
import sej
from demo.live import Live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_the_demo_waits_for_what_its_stream_has_not_counted_yet(spark: "SparkSession", tmp_path: Path) -> None:
    with hub.Store(tmp_path / "hub") as store:
        store.put("EWR", "flights", [sej.Message(number, number, 0, b"", b"flight") for number in range(500)])
    first, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def progress(_: int) -> None:
        first.set()
        assert go_on.wait(120)

    live = Live(spark, tmp_path / "hub", tmp_path / "checkpoint", progress)

    def finish() -> None:
        live.finish()
        ended.set()

    waiting = threading.Thread(target=finish)
    assert first.wait(120)
    with hub.Store(tmp_path / "hub") as store:  # while the first batch is on its way
        store.put("EWR", "flights", [sej.Message(number, number, 0, b"", b"flight") for number in range(500, 700)])
    waiting.start()
    assert not ended.is_set()
    go_on.set()
    waiting.join(120)
    assert ended.is_set()
    assert live.counts == {"EWR": 700}
