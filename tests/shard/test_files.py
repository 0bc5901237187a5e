"""A low limit of open files: fewer files are used, or it raises and names the way out."""

import sys
from pathlib import Path as FilePath

from tests.house.house import ROOT, run

PROGRAM = """
import resource, sys, warnings
import sej, shard

root, most = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
path = shard.Path(root, "orders", 6)
keys = [b"%d" % number for number in range(2000)]
with shard.Writer(path) as writer:
    for _ in range(3):
        writer.append_many(keys, keys)
    print("open", writer.open_count)
with shard.Scanner(path, by="time") as scanner:
    print("read", sum(1 for _ in scanner))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    handled = shard.Worker(path, "w", timeout=0.0).run(lambda index, message: None)
print("handled all", handled == 6000, [str(warning.message).partition(":")[0] for warning in caught])
try:
    print("resharded", shard.reshard(path, shard.Path(root, "orders", 7)).messages)
except sej.SejError as error:
    print("refused", "ulimit -n" in str(error))
"""


def lines(root: FilePath, most: int) -> list[str]:
    done = run([sys.executable, "-W", "error", "-c", PROGRAM, root, str(most)], ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_no_more_files_are_opened_than_the_limit_allows(tmp_path: FilePath) -> None:
    # The new sharded journal's writer has fewer files than four for each shard, because a reshard holds 64 locks.
    assert lines(tmp_path / "many", 320) == ["open 64", "read 6000", "handled all True []", "resharded 6000"]
    few = lines(tmp_path / "few", 70)
    assert few[:2] == ["open 1", "read 6000"]
    assert few[2].startswith("handled all False ['this worker cannot open enough files for its 64 shards of ")
    assert few[3:] == ["refused True"]
