"""The workflows run what the Makefile offers, and no action that can change."""

import re
from pathlib import Path

import pytest

from tests.house.house import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_there_is_one_for_each_task() -> None:
    assert {path.stem for path in WORKFLOWS} == {"codeql", "docs", "release", "test", "wheels"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_named_by_commit_and_targets_exist(path: Path) -> None:
    text = path.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{action}: which version is it?"
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= TARGETS
    assert "permissions: {}" in text, "each job asks for what it needs"
