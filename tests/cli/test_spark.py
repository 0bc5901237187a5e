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


def test_an_address_is_named_as_it_was_given() -> None:
    address = "s3a://b/x"
    for words in (
        ["count", address],
        ["stats", address],
        ["compact", address, "x"],
        ["finish", address],
        ["restore", "x", address],
    ):
        done = sej("spark", *words)
        assert done.returncode == 2
        assert b"'s3a://b/x' is on a file system of type s3a: pass a local path" in done.stderr


def test_dedupe_names_a_column_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"by has the column 'user'; expected some of client, .*value$"):
        jobs.dedupe(None, tmp_path, tmp_path / "t", by=["key", "user"])  # type: ignore[arg-type]


def test_finish_needs_a_root(tmp_path: Path) -> None:
    done = sej("spark", "finish", tmp_path / "none")
    assert (done.returncode, done.stdout, b"none: the path does not exist" in done.stderr) == (4, b"", True)


def test_what_is_missing_is_said_before_spark_starts(tmp_path: Path) -> None:
    missing, target = tmp_path / "missing", tmp_path / "target"
    for command, *more in (["count"], ["stats"], ["archive", target], ["restore", target]):
        done = sej("spark", str(command), missing, *more)
        assert done.returncode == 4
        assert done.stderr.startswith(f"sej: {missing}: ".encode())
        assert done.stderr.count(b"\n") == 1
