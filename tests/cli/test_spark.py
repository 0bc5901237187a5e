"""sej spark, as far as it goes without starting Spark: what is missing is said before."""

import json
from pathlib import Path

import sej as library
from tests.cli.command import sej


def test_counting_needs_no_spark(tmp_path: Path) -> None:
    for name in ("orders.1.000", "orders.1.001"):
        with library.Writer(tmp_path / "data" / name) as writer:
            writer.append_many([b"x"] * 3)
    assert sej("spark", "count", tmp_path / "data").stdout == b"6\n"
    assert json.loads(sej("spark", "count", "--json", tmp_path / "data").stdout) == {"messages": 6}


def test_what_is_missing_is_said_before_spark_starts(tmp_path: Path) -> None:
    missing, target = tmp_path / "missing", tmp_path / "target"
    for command, *more in (["count"], ["stats"], ["archive", target], ["restore", target]):
        done = sej("spark", str(command), missing, *more)
        assert done.returncode == 4
        assert done.stderr.startswith(f"sej: {missing}: ".encode())
        assert done.stderr.count(b"\n") == 1
