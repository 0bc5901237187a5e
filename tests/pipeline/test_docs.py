"""The page has every table of options, and each option is explained in the code."""

import sys
from importlib import import_module

import pytest

from pipeline.columns import ONE_SOURCE
from pipeline.options import KESTREL_READ, READ, SEJ, STREAM, WRITE
from tests.house.house import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))
spark_options = import_module("spark_options")
PAGE = (ROOT / "docs" / "pipeline.md").read_text()


@pytest.mark.parametrize(("name", "table"), [("SEJ", SEJ), ("WRITE", WRITE), ("KESTREL_READ", KESTREL_READ)])
def test_every_option_has_a_row_with_its_meaning(name: str, table: tuple[object, ...]) -> None:
    assert f"```{{sej-options}} {name}\n" in PAGE
    rows = list(spark_options.rows(name))
    assert len(rows) == len(table)
    assert all(len(meaning) > 20 for _, _, _, meaning, _ in rows)


def test_batch_and_stream_share_the_rest() -> None:
    assert {option.name for option in SEJ} == {option.name for option in (*READ, *STREAM)}


def test_columns_are_on_the_page_of_tables() -> None:
    columns = ", ".join(f"{name} {kind.replace('bigint', 'long')}" for name, kind in ONE_SOURCE.items())
    assert f"`{columns}`" in (ROOT / "docs" / "ask.md").read_text()
