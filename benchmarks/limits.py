"""Section limits: what this machine can do, with which the other sections are compared.

The loop in C is left out where no compiler is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import Row, cpu_timed, folder, interleaved, timed

MIB = 1 << 20
WRITES = 200_000
SYNCS = 50
_LOOP_C = """
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int main(int count, char **words) {
    char value[100] = {0};
    int fd = open(words[1], O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600), left = atoi(words[2]);
    clock_t begun = clock();
    for (int n = 0; n < left; n++) if (write(fd, value, sizeof value) != sizeof value) return 1;
    printf("%f\\n", (double)(clock() - begun) / CLOCKS_PER_SEC);
}
"""


def run() -> list[Row]:
    """All lines of the section."""
    with folder() as root:
        candidates: dict[str, Callable[[], float]] = {
            "write and fdatasync of 4 KiB: wall": partial(timed, partial(_synced, root), SYNCS),
            "write of 100 bytes, a loop in Python": partial(cpu_timed, partial(_written, root), WRITES),
            "copy in memory, MiB": partial(cpu_timed, _copied, 256),
            "start of bare Python": partial(timed, partial(subprocess.run, [sys.executable, "-S", "-c", ""]), 1),
        }
        compiler = shutil.which("cc")
        if compiler is not None:
            (root / "loop.c").write_text(_LOOP_C)
            subprocess.run([compiler, "-O2", "-o", str(root / "loop"), str(root / "loop.c")], check=True)
            candidates["write of 100 bytes, a loop in C"] = partial(_in_c, root)
        found = interleaved(candidates)
    return [
        Row(name, f"{rate:,.0f}/s" if rate > 100 else f"{1000 / rate:.1f} ms", None, None, None)
        for name, rate in found.items()
    ]


def _synced(root: Path) -> None:
    fd = os.open(root / "synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(SYNCS):
        os.write(fd, bytes(4096))
        os.fdatasync(fd)
    os.close(fd)


def _written(root: Path) -> None:
    fd, value, write = (
        os.open(root / "written", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND),
        bytes(100),
        os.write,
    )
    for _ in range(WRITES):
        write(fd, value)
    os.close(fd)


def _copied() -> None:
    source, target = bytes(MIB), bytearray(MIB)
    view = memoryview(target)
    for _ in range(256):
        view[:] = source


def _in_c(root: Path) -> float:
    done = subprocess.run([root / "loop", root / "in_c", str(WRITES)], check=True, capture_output=True, text=True)
    return WRITES / float(done.stdout)
