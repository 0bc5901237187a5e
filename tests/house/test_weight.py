"""What there is to carry has a ceiling. A commit that removes code lowers it; one that raises it says why.

The figures are those of ``python -m tools.weight``.
"""

import pytest

from tools.weight import PACKAGES, WAYS, calls, sizes

#             code    modules  cython  extensions  callables
SIZES = {
    "sej": (16_750, 126, 970, 1, 61),
    "shard": (3_000, 20, 170, 1, 8),
    "textqueue": (6_600, 50, 0, 0, 19),
    "kestrel": (5_300, 40, 1_260, 1, 55),
    "hub": (6_900, 43, 0, 0, 13),
    "pipeline": (5_850, 51, 0, 0, 12),
    "tests": (52_970, 338, 0, 0, 131),
}
CALLS = {
    "open a clean journal": (176, 24),
    "queue get": (51, 20),
    "claim in a .tq file": (128, 18),
}
"""Python calls, and the files that they are in. In memory (tmpfs), opening makes 25 calls more than on a disk."""


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, int]]:
    return sizes()


@pytest.mark.parametrize("part", [*PACKAGES, "tests"])
def test_no_part_is_above_its_ceiling(part: str, counted: dict[str, dict[str, int]]) -> None:
    above = [
        f"{what}: {found:,}, at most {most:,}"
        for (what, found), most in zip(counted[part].items(), SIZES[part], strict=True)
        if found > most
    ]
    assert not above


@pytest.mark.parametrize("way", WAYS)
def test_no_way_makes_more_calls_than_its_ceiling(way: str) -> None:
    number, files = calls(way)
    assert number <= CALLS[way][0] and files <= CALLS[way][1]
