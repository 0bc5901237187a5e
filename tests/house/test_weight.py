"""What there is to carry has a ceiling. A commit that removes code lowers it; one that raises it says why.

The figures are those of ``python -m tools.weight``.
"""

import pytest

from tools.weight import PACKAGES, WAYS, calls, sizes

#             code    modules  cython  extensions  callables
SIZES = {
    "sej": (17_298, 109, 987, 1, 39),
    "shard": (2_720, 15, 160, 1, 8),
    "textqueue": (6_295, 48, 0, 0, 13),
    "kestrel": (4_480, 32, 860, 1, 16),
    "hub": (6_360, 35, 0, 0, 8),
    "pipeline": (5_320, 38, 0, 0, 6),
    "tests": (50_644, 339, 0, 0, 124),
}
CALLS = {
    "open a clean journal": (122, 18),
    "queue get": (31, 16),
    "claim in a .tq file": (148, 20),
}
"""Python calls, and the files that they are in."""


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
