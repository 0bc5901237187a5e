"""The golden cases of both formats: their directory, and how a test copies one."""

import base64
import json
import shutil
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


def cases(kind: str) -> list[str]:
    return sorted(path.parent.name for path in (GOLDEN / kind).glob("*/expected.json"))


def manifest(kind: str, case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / kind / case / "expected.json").read_text())
    return found


def lay_out(kind: str, case: str, target: Path) -> dict[str, Any]:
    """Copy the files of a case to target, with the folders that a version control system does not keep."""
    shutil.copytree(GOLDEN / kind / case / "journal", target, dirs_exist_ok=True)
    found = manifest(kind, case)
    for file in found["files"]:
        if "size" not in file:
            (target / file["name"]).mkdir(exist_ok=True)
    return found


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory and what it holds."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def plain(data: str) -> bytes:
    return base64.b64decode(data)
