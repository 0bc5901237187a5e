"""A low limit of open files: the soft limit is raised. If the hard one is low, fewer files are used or it raises."""

import subprocess
import sys
from pathlib import Path as FilePath

PROGRAM = """
import resource, sys, warnings
import sej, shard

root, soft, hard = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
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
    print("resharded", shard.reshard(path, shard.Path(root, "orders", 2)).messages)
except sej.SejError as error:
    print("refused", "ulimit -n" in str(error))
"""


def lines(root: FilePath, soft: int, hard: int) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(root), str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_soft_limit_is_raised_and_a_hard_one_respected(tmp_path: FilePath) -> None:
    assert lines(tmp_path / "soft", 80, 4096) == ["open 64", "read 6000", "handled all True []", "resharded 6000"]
    few = lines(tmp_path / "hard", 70, 70)
    assert few[:2] == ["open 1", "read 6000"]
    assert few[2].startswith("handled all False ['this worker cannot open enough files for its 64 shards of ")
    assert few[3:] == ["refused True"]
