"""Journals to read with Spark, and a hub to write to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hub
import sej
from hub.tokens import Grant, Role, hash_token
from hub.wire import Server, ServerTLS, Tokens, make_token
from tests.hub.support import CERTIFICATES

BASE_NS = 1_700_000_000_000_000_000


def fill(path: Path, count: int, *, first: int = 0, step_ns: int = 10**9, tag: str = "v") -> None:
    """Append count messages: value tag-number, key k-number, a second apart, type number mod 3."""
    numbers = range(first, first + count)
    with sej.Writer(path) as writer:
        writer.append_many(
            [b"%s-%d" % (tag.encode(), number) for number in numbers],
            [b"k-%d" % (number % 7) for number in numbers],
            [number % 3 for number in numbers],
            [BASE_NS + number * step_ns for number in numbers],
        )


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A SEJ directory with 100 messages, a second apart."""
    fill(tmp_path / "journal", 100)
    return tmp_path / "journal"


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A tree of four shards, ``orders``, with 10, 20, 30 and 40 messages."""
    for index in range(4):
        fill(tmp_path / "tree" / f"orders.2.{index:03x}", 10 * (index + 1), tag=f"s{index}")
    return tmp_path / "tree"


@pytest.fixture
def hub_root(tmp_path: Path) -> Path:
    """A hub's root: clients ``berlin`` and ``tokyo`` with two shards each, and ``berlin.plain.log``."""
    root = tmp_path / "hub"
    for client in ("berlin", "tokyo"):
        for index in range(2):
            fill(root / f"{client}.orders.1.{index:03x}", 5 + index, tag=client)
    fill(root / "berlin.plain.log", 3, tag="plain")
    (root / ".hub").touch()
    return root


@contextmanager
def serving(root: Path, role: Role, *clients: str) -> Iterator[dict[str, str]]:
    """Serve a hub with TLS; yields the options that reach it, whose token has the role for the clients."""
    token = make_token()
    tls = ServerTLS(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    tokens = Tokens([Grant(hash_token(token), role, clients)])
    with hub.Store(root) as store, Server(store, "127.0.0.1:0", tls=tls, tokens=tokens) as server:
        yield {"hub": server.address, "hubToken": token, "hubCa": str(CERTIFICATES / "ca.pem")}


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, str]]:
    """How to reach a hub with an empty root, ``hub``; the token may append and not read."""
    with serving(tmp_path / "hub", "append", "berlin") as options:
        yield options
