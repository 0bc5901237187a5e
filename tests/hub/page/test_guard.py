"""Who may ask: hosts, tokens, origins, and what every answer forbids."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import URL
from starlette.requests import Request

from hub.page.serving import HEADERS, PageServer
from hub.tokens import hash_token, make_token
from tests.cli.command import sej
from tests.hub.page.browsing import Client, address_of, filled, serving, started
from tests.hub.support import CERTIFICATES

PAGE = Path(__file__).resolve().parents[3] / "hub" / "page"
VIEW, CHANGE, WRITE = make_token(), make_token(), make_token()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    lines = [f"{hash_token(VIEW)} view alice", f"{hash_token(CHANGE)} change bob", f"{hash_token(WRITE)} write EWR"]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(filled(tmp_path / "orders")) as found:
        yield found


def test_every_answer_forbids_what_is_from_elsewhere(client: Client, tmp_path: Path) -> None:
    addresses = ["/", "/login", "/nothing", "/static/page.js", "/static/page.css", "/static/nothing"]
    addresses += [
        address_of("/journal", tmp_path / "orders"),
        address_of("/journal/value", tmp_path / "orders", offset=0),
    ]
    for address in addresses:
        answer = client.get(address)
        for name, value in HEADERS.items():
            if name != "cache-control" or "static" not in address:
                assert answer.headers.get_all(name) == [value], (address, name)
    refused = client.ask("GET", "/", Host="evil.example")
    assert refused.headers["content-security-policy"] == HEADERS["content-security-policy"]


def test_nothing_is_fetched_from_another_host() -> None:
    files = [*(PAGE / "templates").iterdir(), *(PAGE / "static").iterdir()]
    assert len(files) > 10
    for file in files:
        text = file.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?:|//[a-z]+\.[a-z]", text), file
        assert "|safe" not in text.replace(" ", ""), file
        assert not re.search(r"\son[a-z]+=|\sstyle=|javascript:", text), file


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost.evil", "[", "localhost/", "localhost?",
     "localhost#", "a@localhost"],
)  # fmt: skip
def test_another_name_for_the_loopback_interface_is_refused(client: Client, host: str) -> None:
    assert client.ask("GET", "/", Host=host).status == 421


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_the_loopback_interface_has_several_names(client: Client, host: str) -> None:
    assert client.ask("GET", "/", Host=host).status == 200


def test_only_get_and_post(client: Client) -> None:
    assert client.ask("DELETE", "/").status == 405
    assert client.post("/", {}).status == 403


def test_a_token_is_needed_for_everything_but_the_form(tmp_path: Path, tokens: Path) -> None:
    orders = filled(tmp_path / "orders")
    with serving(orders, tokens=tokens) as client:
        for address in ("/", address_of("/journal", orders)):
            assert client.get(address).headers["location"] == "/login"
        for address in ("/", address_of("/journal", orders), "/nothing"):
            assert client.ask("GET", address, Accept="*/*").status == 401, address
        assert "Token" in client.get("/login").words
        assert client.get("/static/page.css").status == 200
        assert client.ask("GET", "/", Authorization=f"Bearer {VIEW}").status == 200
        for wrong in (WRITE, "x", "", VIEW[:-1]):
            assert client.ask("GET", "/", Accept="*/*", Authorization=f"Bearer {wrong}").status == 401


@pytest.mark.parametrize("loopback", [True, False])
def test_the_host_header_does_not_replace_the_address(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, loopback: bool
) -> None:
    """Older versions of Starlette put the header in front of the address, and parse the whole for ``request.url``."""

    def url(request: Request) -> URL:
        query = request.scope["query_string"].decode()
        return URL(f"http://{request.headers.get('host')}{request.scope['path']}?{query}")

    monkeypatch.setattr(Request, "url", property(url))
    orders, tls = filled(tmp_path / "orders"), dict[str, Any]()
    if not loopback:
        tls = {"certificate": CERTIFICATES / "server.pem", "key": CERTIFICATES / "server.key"}
    with PageServer([orders], "127.0.0.1" if loopback else "0.0.0.0", 0, tokens=tokens, **tls) as server:
        client = Client(server.url.replace("0.0.0.0", "127.0.0.1"), None if loopback else CERTIFICATES / "ca.pem")
        for host in ("localhost/static/?", f"localhost/static/?path={orders}&a=", "localhost/login?"):
            for address in ("/", address_of("/journal", orders)):
                assert client.ask("GET", address, Host=host).status == (421 if loopback else 400)
        assert client.ask("GET", "/", Accept="*/*").status == 401
        assert client.ask("GET", "/", Authorization=f"Bearer {VIEW}").status == 200


def test_signing_in(tmp_path: Path, tokens: Path) -> None:
    with serving(filled(tmp_path / "orders"), tokens=tokens) as client:
        wrong = client.post("/login", {"token": WRITE})
        assert (wrong.status, wrong.headers["location"]) == (303, "/login?wrong=1")
        assert "unknown" in client.get("/login", wrong="1").words
        assert client.post("/login", {"token": VIEW}, Origin="http://evil.example").status == 403
        answer = client.post("/login", {"token": VIEW})
        assert answer.headers["location"] == "/"
        (cookie,) = answer.headers.get_all("set-cookie", [""])
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
        assert "You are alice, read only" in client.get("/").words
        tokens.write_text(f"{hash_token(CHANGE)} change bob")
        assert client.get("/").status == 303  # the token was withdrawn
        tokens.write_text("nonsense")
        assert client.get("/").status == 503


def test_tls(tmp_path: Path, tokens: Path) -> None:
    certificate, key = CERTIFICATES / "server.pem", CERTIFICATES / "server.key"
    orders = filled(tmp_path / "orders")
    with PageServer([orders], port=0, certificate=certificate, key=key, tokens=tokens) as server:
        assert server.url.startswith("https://")
        client = Client(server.url, CERTIFICATES / "ca.pem")
        cookie = client.post("/login", {"token": CHANGE}).headers.get_all("set-cookie")
        assert cookie is not None
        assert all("; Secure" in one for one in cookie)
        assert "bob" in client.get("/").words


@pytest.mark.parametrize("missing", ["certificate", "tokens"])
def test_other_addresses_need_tls_and_tokens(tmp_path: Path, tokens: Path, missing: str) -> None:
    options = {"certificate": CERTIFICATES / "server.pem", "key": CERTIFICATES / "server.key", "tokens": tokens}
    del options[missing]
    if missing == "certificate":
        del options["key"]
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    done = sej("ui", filled(tmp_path / "orders"), "--host", "0.0.0.0", "--port", "0", *words)
    assert done.returncode == 2
    assert b"--certificate, --key and --tokens" in done.stderr


def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    with started("ui", filled(tmp_path / "orders"), "--port", "0") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        client = Client(running.stdout.readline().decode().split()[-1])
        assert client.get("/").status == 200
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
        assert running.stderr.read() == b""


def test_wrong_usage(tmp_path: Path) -> None:
    orders = filled(tmp_path / "orders")
    assert sej("ui").returncode == 2
    assert sej("ui", tmp_path / "missing").returncode == 4
    assert sej("ui", orders, "--key", CERTIFICATES / "server.key").returncode == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done: subprocess.CompletedProcess[bytes] = sej("ui", orders, "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert b"cannot listen on 127.0.0.1" in done.stderr


def test_a_token_for_a_person(tmp_path: Path) -> None:
    fresh, line = sej("hub", "token", "--view", "alice").stdout.decode().splitlines()
    path = tmp_path / "tokens"
    path.write_text(line)
    with serving(filled(tmp_path / "orders"), tokens=path) as client:
        assert client.ask("GET", "/", Authorization=f"Bearer {fresh}").status == 200
    assert sej("hub", "token", "--view", "a", "--change", "b").returncode == 2
    assert sej("hub", "token", "--change", "a b").returncode == 2
