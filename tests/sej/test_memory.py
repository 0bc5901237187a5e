"""Memory that the C library keeps: freed blocks are used again without page faults."""

import platform
import subprocess
import sys

PROGRAM = """
from resource import RUSAGE_SELF, getrusage
from sej.system.process import keep_freed_memory

kept = keep_freed_memory(1 << 23, 1 << 25, 2)
bytearray(1 << 22)
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(10):
    bytearray(1 << 22)
print(kept, getrusage(RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_blocks_are_used_again_without_page_faults() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    kept, faults = output.split()
    assert kept == str(platform.libc_ver()[0] == "glibc")
    assert kept == "False" or int(faults) < 512  # one block has 1024 pages
