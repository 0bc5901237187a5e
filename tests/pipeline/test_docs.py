"""The page says what the tables of options say, and who has read it can work."""

import re

import pytest

from pipeline.options import KESTREL_READ, READ, SEJ, STREAM, WRITE, Option
from tests.house.house import ROOT
from tests.pipeline.conftest import SCHEMA

PAGE = (ROOT / "docs" / "pipeline.md").read_text()


@pytest.mark.parametrize("option", [*SEJ, *WRITE, *KESTREL_READ], ids=lambda option: option.name)
def test_every_option_is_on_the_page_as_it_is(option: Option) -> None:
    rows = [row for row in PAGE.splitlines() if row.startswith(f"| `{option.name}` |")]
    assert any(f"| {option.kind.expected} |" in row for row in rows)


def test_no_other_option_is_on_the_page() -> None:
    tables = re.findall(r"\| option \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE)
    named = [sorted(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) for table in tables]
    assert named == [sorted(option.name for option in each) for each in (SEJ, WRITE, KESTREL_READ)]


def test_batch_and_stream_share_the_rest() -> None:
    assert {option.name for option in SEJ} == {option.name for option in (*READ, *STREAM)}


def test_columns_are_on_the_page() -> None:
    columns = ", ".join(f"{field.name} {field.dataType.simpleString().replace('bigint', 'long')}" for field in SCHEMA)
    assert f"`{columns}`" in PAGE
