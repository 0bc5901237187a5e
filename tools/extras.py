"""Prints the extras that users install, separated by commas: all but those of the development."""

import tomllib
from pathlib import Path

DEVELOPMENT = {"bench", "checks", "demo", "dev", "docs", "test"}


def extras() -> list[str]:
    """Return their names, sorted."""
    text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
    return sorted(tomllib.loads(text)["project"]["optional-dependencies"].keys() - DEVELOPMENT)


if __name__ == "__main__":
    print(",".join(extras()))
