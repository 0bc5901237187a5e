"""What there is to carry has a ceiling. Whoever lands a cut lowers it; raising one needs a reason in the commit.

The figures are those of ``python -m tools.weight``.
"""

import pytest

from tools.weight import PACKAGES, WAYS, calls, sizes

#             code    modules  cython  extensions  callables
SIZES = {
    "sej": (17_600, 150, 1_300, 2, 80),
    "shard": (3_050, 22, 200, 1, 9),
    "textqueue": (6_600, 50, 0, 0, 19),
    "kestrel": (5_400, 51, 1_300, 3, 60),
    "hub": (7_250, 65, 0, 0, 25),
    "pipeline": (5_950, 55, 0, 0, 28),
    "tests": (54_700, 345, 0, 0, 135),
}
CALLS = {
    "open a clean journal": (185, 25),
    "queue get": (56, 22),
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
