"""Spark sessions for benchmarks: on this machine only, and quiet."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["start"]


def start(master: str, folder: Path, conf: Mapping[str, str]) -> SparkSession:
    """Start a session whose files are below a folder."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    return pipeline.session("benchmarks", master=master, conf={**quiet, **conf})
