"""Packages of Debian and its children, where we may install them."""

import os
import shutil
import subprocess


def install(package: str) -> bool:
    """Install one package without questions, and upgrade nothing that is there: the machine is not ours.

    False if apt-get is missing, may not be used, or has no such package.
    """
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-qq"], ["install", "-y", "-qq", "--no-upgrade", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", *arguments], env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            print(f"apt-get {arguments[0]}: {done.stderr.strip()[-500:]}", flush=True)
            return False
    return True
