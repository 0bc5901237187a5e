"""Memory that the C library keeps: freed blocks are used again without page faults."""

import platform
import subprocess
import sys

import pytest

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

ADAPTED = """
import ctypes
from resource import RUSAGE_SELF, getrusage
from sej.system.process import keep_like_after

PR_SET_THP_DISABLE = 41
ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # a huge page would be one fault

def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(50):
        blocks = [b"x" * 300_000 for _ in range(3)]
        del blocks
    return getrusage(RUSAGE_SELF).ru_minflt - before

first = faults()
keep_like_after(1 << 21)
faults()
print(first, faults())
"""


def test_freed_blocks_are_used_again_without_page_faults() -> None:
    output = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    kept, faults = output.split()
    assert kept == str(platform.libc_ver()[0] == "glibc")
    assert kept == "False" or int(faults) < 512  # one block has 1024 pages


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_smaller_blocks_are_used_again_after_a_large_one_was_freed() -> None:
    output = subprocess.run([sys.executable, "-c", ADAPTED], check=True, capture_output=True, text=True).stdout
    first, then = map(int, output.split())
    assert first > 50 * 73  # one block has 73 pages
    assert then < 73
