"""sej bench: every measurement works, shows what it survives, and leaves nothing behind."""

import json
import signal
from pathlib import Path

import pytest

from sej.cli.bench import MEASUREMENTS
from tests.cli.command import sej, start


def test_every_measurement_works(tmp_path: Path) -> None:
    done = sej("bench", "--json", "--seconds", "0", "--value-bytes", "1K", tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    head, *rows = map(json.loads, done.stdout.splitlines())
    assert (head["path"], head["value_bytes"]) == (str(tmp_path), 1024)
    assert [(row["operation"], row["call"]) for row in rows] == [one[:2] for one in MEASUREMENTS]
    for row in rows:
        assert row["rate"] > 0
        assert len(row["rounds"]) == 3
        assert row["survives"] in ("clean close", "process death", "power loss") or row["operation"] == "read in order"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_its_files_go_however_it_ends(tmp_path: Path, number: int, code: int) -> None:
    with start("bench", "--seconds", "10m", "--only", "append", tmp_path) as running:
        # It measures: a signal in the middle of an import would leave its file to the garbage collection.
        while not any(segment.stat().st_size for segment in tmp_path.glob("sej-bench-*/**/*.jnl")):
            assert running.poll() is None
        running.send_signal(number)
        assert running.wait(20) == code
        assert running.stderr.read() == b""
    assert list(tmp_path.iterdir()) == []
