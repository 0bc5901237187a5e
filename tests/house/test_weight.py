"""What there is to carry has a ceiling. A commit that removes code lowers it; one that raises it says why.

The figures are those of ``python -m tools.weight``.
"""

import pytest

from tools.weight import PACKAGES, WAYS, calls, sizes

#             code    modules  cython  extensions  callables
SIZES = {
    "sej": (19_435, 129, 1_123, 1, 44),
    "shard": (2_666, 15, 160, 1, 8),
    "textqueue": (5_603, 45, 0, 0, 10),
    "kestrel": (3_829, 28, 781, 1, 14),
    "hub": (6_896, 38, 0, 0, 12),
    "pipeline": (5_797, 40, 0, 0, 9),
    "tests": (50_734, 358, 0, 0, 110),
}
CALLS = {
    "open a clean journal": (77, 14),
    "queue get": (30, 15),
    "claim in a .tq file": (77, 17),
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
