"""--format msgpack and bson, which decode values into JSON; and sej dump between two places."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import bson
import msgpack
import pytest

import sej as library
from tests.cli.command import ENV, sej

STAMP = 1_500_000_000_000_000_000


def rows(*words: str | Path) -> list[dict[str, Any]]:
    done = sej(*words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    values = [
        msgpack.packb({"a": [1, None, b"\xff"], 7: "größer", "when": msgpack.Timestamp(1_500_000_000, 1)}),
        msgpack.packb({"nan": float("nan"), "ext": msgpack.ExtType(5, b"x")}),
        bson.encode({"a": {"b": 1}, "when": datetime(2026, 1, 31, tzinfo=UTC), "raw": b"\xff"}),
        b"hello",
        b"",
        b"\xc1\xff",
    ]
    with library.Writer(tmp_path / "j") as writer:
        for number, value in enumerate(values):
            writer.append(value, b"\xfe", number, STAMP + number * 10**9)
    return tmp_path / "j"


@pytest.mark.parametrize("command", ["scan", "tail", "dump"])
def test_msgpack(journal: Path, command: str) -> None:
    path = next((journal / "jnl").iterdir()) if command == "dump" else journal
    found = rows(command, "--format", "msgpack", path)
    assert found[0]["value"] == {
        "a": [1, None, {"b64": "/w=="}],
        "7": "größer",
        "when": "2017-07-14T02:40:00.000000001Z",
    }
    assert (found[0]["offset"], found[0]["key_b64"], "error" in found[0]) == (0, "/g==", False)
    assert found[1]["value"] == {"nan": "nan", "ext": {"ext": 5, "b64": "eA=="}}
    for row, value in zip(found[3:], ("hello", ""), strict=False):
        assert (row["value"], row["error"][:16]) == (value, "not MessagePack:")
    assert (found[5]["value_b64"], found[5]["error"][:16]) == ("wf8=", "not MessagePack:")


def test_bson(journal: Path) -> None:
    found = rows("scan", "--json", "--format", "bson", journal)  # --json is said by the format already
    assert found[2]["value"] == {
        "a": {"b": 1},
        "when": {"$date": "2026-01-31T00:00:00Z"},
        "raw": {"$binary": {"base64": "/w==", "subType": "00"}},
    }
    assert [number for number, row in enumerate(found) if "error" in row] == [0, 1, 3, 4, 5]


@pytest.mark.parametrize(
    ("name", "words", "extra"),
    [
        ("msgpack", ["scan", "--format", "msgpack"], "formats"),
        ("bson", ["dump", "--format", "bson"], "formats"),
        ("pyspark", ["spark", "stats"], "spark"),
        ("grpc", ["hub", "serve"], "hub"),
    ],
)
def test_one_sentence_where_a_library_is_missing(journal: Path, name: str, words: list[str], extra: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; from sej.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *words, str(journal)], env=ENV, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == f"sej: this needs {name}: pip install 'sej-journals[{extra}]'\n".encode()


def test_dump_between_two_places(journal: Path) -> None:
    segment = next((journal / "jnl").iterdir())
    assert [row["offset"] for row in rows("dump", "--json", "--start", "1", "--end", "4", segment)] == [1, 2, 3]
    times = ["--start", "2017-07-14 02:40:02", "--end", "2017-07-14T02:40:04Z"]
    assert [row["offset"] for row in rows("dump", "--json", *times, segment)] == [2, 3]
    assert [row["offset"] for row in rows("dump", "--json", "--type", "0", segment)] == [0]
    assert rows("dump", "--json", "--start", "yesterday", segment) == []
