"""Messages larger than every read window among short ones, in a sharded journal."""

import pathlib
import random

import pytest

import shard
from shard import Path
from tests.sej.windows import BLOCK_BYTES, READ_BYTES, shrunk, small_windows

WINDOWS = {
    "shard.scanner": ["_WHOLE", "_HELD", "_HELD_BYTES", "_LEAST_BYTES", "CHUNK_BYTES"],
    "shard.resharding": ["_BATCH"],
}
LEAST = 200
"""No window is smaller than the head of a message."""
Row = tuple[bytes, bytes]


def read(path: Path, by: str, max_open: int) -> dict[bytes, list[bytes]]:
    """The values of each key, in the order in which they came."""
    found: dict[bytes, list[bytes]] = {}
    with shard.Scanner(path, by=by, max_open=max_open) as s:  # type: ignore[arg-type]
        for _, message in s:
            found.setdefault(message.key, []).append(message.value)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_every_shard_holds_its_messages_of_any_size(seed: int, tmp_path: pathlib.Path) -> None:
    dice = random.Random(seed)
    rows: list[Row] = []
    expected: dict[bytes, list[bytes]] = {}
    path = Path(tmp_path, "o", 2)
    with small_windows(), shrunk(WINDOWS, least=LEAST):
        with shard.Writer(path, segment_bytes=dice.choice([3000, 1 << 30])) as w:
            for _ in range(dice.randrange(2, 8)):
                rows = []
                for _ in range(dice.randrange(1, 20)):
                    large = dice.choice(
                        [200, BLOCK_BYTES - 30, BLOCK_BYTES, READ_BYTES, dice.randrange(20 * READ_BYTES)]
                    )
                    key = b"k%d" % dice.randrange(20)
                    rows.append((key, b"v" * (large if dice.random() < 0.3 else dice.randrange(30))))
                    expected.setdefault(key, []).append(rows[-1][1])
                if dice.random() < 0.5:
                    w.append_many([value for _, value in rows], [key for key, _ in rows])
                else:
                    for key, value in rows:
                        w.append(value, key)
        for by in ("turn", "time"):
            assert read(path, by, dice.choice([1, 8])) == expected
        shard.reshard(path, Path(tmp_path, "n", 3))
        assert read(Path(tmp_path, "n", 3), "turn", 8) == expected
