"""What there is to carry has a ceiling. A commit that removes code lowers it; one that raises it says why.

The figures are those of ``python -m tools.weight``.
"""

import pytest

from tools.weight import PACKAGES, WAYS, calls, sizes

#             code    modules  cython  extensions  callables
SIZES = {
    "sej": (18_772, 127, 1_067, 1, 43),
    "shard": (2_696, 15, 160, 1, 8),
    "textqueue": (5_926, 48, 0, 0, 10),
    "kestrel": (4_344, 32, 855, 1, 15),
    "hub": (6_335, 35, 0, 0, 9),
    "pipeline": (5_746, 40, 0, 0, 9),
    "tests": (49_900, 352, 0, 0, 116),
}
CALLS = {
    "open a clean journal": (121, 18),
    "queue get": (31, 16),
    "claim in a .tq file": (121, 17),
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
