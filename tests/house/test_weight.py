"""What there is to carry has a ceiling. A commit that removes code lowers it; one that raises it says why.

The figures are those of ``python -m tools.weight``.
"""

import pytest

from tools.weight import PACKAGES, WAYS, calls, sizes

#             code    modules  cython  extensions  callables
SIZES = {
    "sej": (18_405, 103, 1_198, 1, 41),
    "shard": (2_505, 12, 160, 1, 9),
    "textqueue": (5_559, 32, 0, 0, 10),
    "kestrel": (3_658, 23, 781, 1, 14),
    "hub": (6_355, 31, 0, 0, 12),
    "pipeline": (5_840, 37, 0, 0, 12),
    "tests": (47_019, 264, 0, 0, 103),
}
CALLS = {
    "open a clean journal": (76, 14),
    "queue get": (29, 15),
    "claim in a .tq file": (78, 17),
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
