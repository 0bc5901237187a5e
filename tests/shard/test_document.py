"""docs/formats/shard.md says what the code does."""

import re
from pathlib import Path

import pytest
import xxhash

import shard
from shard import names, routing
from shard.names import split_name

PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "formats" / "shard.md").read_text()
KEYS = re.findall(r"^\| (\S+) \| `([0-9a-f]{16})` \| (-?\d+) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
FOLDED = re.findall(r"^\| (\S+) \| `([0-9a-f]{8})` \| `([0-9a-f]{4})` \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
NAMES = re.findall(r"^(\S+) +(?:prefix (\w+)|no prefix), ([\d,]+|one) shards?(?:, shard (\d+))?", PAGE, re.MULTILINE)


def test_there_are_rows() -> None:
    assert len(KEYS) == len(FOLDED) == 4
    assert len(NAMES) == 4


@pytest.mark.parametrize("row", KEYS)
def test_keys_are_routed_as_the_table_says(row: tuple[str, str, str, str, str]) -> None:
    shown, digest, signed, of_8, of_1024 = row
    key = b"" if shown == "(empty)" else shown.strip("`").encode()
    assert xxhash.xxh64_hexdigest(key, routing.HASH_SEED) == digest
    assert int(digest, 16) - (int(signed) % 2**64) == 0
    assert (shard.index_of(key, 3), shard.index_of(key, 10)) == (int(of_8), int(of_1024))


@pytest.mark.parametrize("row", FOLDED)
def test_keys_are_folded_as_the_table_says(row: tuple[str, str, str, str, str]) -> None:
    shown, digest, folded, of_8, of_1024 = row
    key = b"" if shown == "(empty)" else shown.strip("`").encode()
    value = int(digest, 16)
    assert (value >> 16) ^ (value & 0xFFFF) == int(folded, 16)
    assert (shard.index_of(key, 3, "fnv"), shard.index_of(key, 10, "fnv")) == (int(of_8), int(of_1024))


@pytest.mark.parametrize("row", NAMES)
def test_names_mean_what_the_page_says(row: tuple[str, str, str, str]) -> None:
    name, prefix, shards, index = row
    parts = split_name(name)
    assert parts is not None
    count = 1 if shards == "one" else int(shards.replace(",", ""))
    assert (parts[0], 1 << parts[1]) == (prefix, count)
    if index:
        assert parts[2] == int(index)


def test_every_file_next_to_the_shards_is_named() -> None:
    for directory in (
        names.HUB_MARKER,
        names.WORKERS_DIR,
        names.RESHARD_DIR,
        names.RECORDS_DIR,
    ):
        assert f"`{directory}" in PAGE
    assert f"seed {routing.HASH_SEED}" in PAGE
