"""sej spark, as far as it goes without starting Spark: what is missing is said before."""

import json
from pathlib import Path

import pytest

import sej as library
from pipeline import jobs
from pipeline.options import OptionError
from tests.cli.command import sej


def test_counting_needs_no_spark(tmp_path: Path) -> None:
    for name in ("orders.1.000", "orders.1.001"):
        with library.Writer(tmp_path / "data" / name) as writer:
            writer.append_many([b"x"] * 3)
    assert sej("spark", "count", tmp_path / "data").stdout == b"6\n"
    assert json.loads(sej("spark", "count", "--json", tmp_path / "data").stdout) == {"messages": 6}


def test_dedupe_names_a_column_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"by has the column 'user'; expected some of client, .*value$"):
        jobs.dedupe(None, tmp_path, tmp_path / "t", by=["key", "user"])  # type: ignore[arg-type]
