"""Our clients with an original hub, which only has Put and Get: they send to it, and report what it cannot do."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import hub
import sej
from hub.cli import app
from hub.naming import client_of, parse_source
from hub.wire import Client, Copier
from hub.wire.client import JobCalls
from tests.cli.command import sej as sej_command
from tests.hub.support import connected, fill, original_stubs, same_bytes
from tests.hub.test_wire import EDGES
from tests.sej.hooks import Script
from tests.sej.support import packed, read_all, sample

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return original_stubs(tmp_path_factory.mktemp("stubs"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def client(stubs: Path, root: Path) -> Iterator[Client]:
    program = [sys.executable, str(HERE / "original_hub.py"), str(stubs), str(root)]
    with Script(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        with Client(f"127.0.0.1:{int(server.stdout.readline())}", client_id="c") as found:
            yield found
        server.stdin.close()


def there(root: Path, name: str = "c.j") -> list[sej.Message]:
    return read_all(root / name)


def test_put_returns_what_follows_the_last_message(client: Client, root: Path) -> None:
    assert client.put("j", EDGES) == len(EDGES)
    assert client.put("j", EDGES) == len(EDGES)
    assert there(root) == EDGES


def test_encoded_messages_are_put(client: Client, root: Path) -> None:
    rows = sample(100)
    assert list(client.copy("j", [packed(rows[:60]), packed(rows[60:])])) == [60, 100]
    assert there(root) == rows
    with pytest.raises(sej.DecodeError, match="last 3 bytes are not a whole message"):
        list(client.copy("j", [packed(sample(1, 100)) + b"abc"]))


def test_a_gap_is_an_error_of_its_own(client: Client, root: Path) -> None:
    client.put("j", sample(5))
    with pytest.raises(hub.GapError, match="messages are missing before these, and it does not report which") as gap:
        client.put("j", sample(5, 7))
    assert gap.value.expected == -1
    assert not isinstance(gap.value, hub.UnavailableError)


CALLS: dict[str, Callable[[Client], object]] = {
    "get": lambda client: client.get("j", 0),
    "where": lambda client: client.where("j"),
    "end_offset": lambda client: client.end_offset("j"),
    "find_time": lambda client: client.find_time("j", 0),
    "journals": lambda client: client.journals(),
    "follow": lambda client: next(client.follow("j", 0)),
    "read_encoded": lambda client: next(client.read_encoded("j", 0)),
    "an empty put": lambda client: client.put("j", []),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_it_cannot_do_is_said(client: Client, name: str) -> None:
    for _ in range(2):  # before and after the client knows
        with pytest.raises(hub.NotSupportedError, match=r"an original hub takes messages .* but cannot report offsets"):
            CALLS[name](client)
        client.put("j", sample(3))


def test_the_copier_continues_where_it_left_off(client: Client, root: Path, tmp_path: Path) -> None:
    rows = sample(1000)
    fill(tmp_path / "j", rows[:400])
    assert Copier(tmp_path / "j", client).run_once() == 400
    fill(tmp_path / "j", rows[400:])
    assert Copier(tmp_path / "j", client).run_once() == 600
    same_bytes(tmp_path / "j", root / "c.j")
    assert Copier(tmp_path / "j", client).run_once() == 0
    with sej.Offset(tmp_path / "j", "hub") as kept:
        assert kept.value == 1000
        kept.reset(100)  # as after a crash before the offset was kept
    assert Copier(tmp_path / "j", client).run_once() == 900
    same_bytes(tmp_path / "j", root / "c.j")


def test_the_copier_reports_a_journal_that_does_not_begin_at_zero(client: Client, tmp_path: Path) -> None:
    fill(tmp_path / "j", sample(10, 5))
    with pytest.raises(hub.GapError, match="messages are missing"):
        Copier(tmp_path / "j", client).run_once()


def test_a_second_name_is_sent_from_the_start_by_the_command_in_the_error(
    client: Client, root: Path, tmp_path: Path
) -> None:
    """The kept offset is that of the first name, and such a hub does not report one."""
    fill(tmp_path / "j", sample(10))
    push = ["push", str(tmp_path / "j"), client.address, "--client"]
    assert CliRunner().invoke(app, [*push, "c"]).exit_code == 0
    refused = CliRunner().invoke(app, [*push, "d"])
    assert isinstance(refused.exception, hub.GapError)
    (command,) = re.findall("`sej (reset .*)`", str(refused.exception))
    assert sej_command(*shlex.split(command)).returncode == 0
    assert CliRunner().invoke(app, [*push, "d"]).exit_code == 0
    same_bytes(tmp_path / "j", root / "d.j")


# --- client ids with dots, as the original's programs have them


@pytest.mark.parametrize("name", ["host.example.com", "10.0.0.1", "a-b.c_d"])
def test_a_client_id_with_dots_is_one_client(tmp_path: Path, name: str) -> None:
    with connected(tmp_path / "hub", name) as (store, client):
        client.put("orders.3.005", EDGES)
        assert client.get("orders.3.005", 0) == EDGES
        assert [(found.client, found.journal_dir) for found in client.journals()] == [(name, "orders.3.005")]
        (source,) = store.sources()
        assert (source.client, source.journal_dir) == (name, "orders.3.005")
        assert parse_source(source.name) == source
        assert client_of(source.name) == name


@pytest.mark.parametrize("name", [".a", "a.", "a..b", ".", "a~b", "a.~", "~", "a./b"])
def test_other_client_ids_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(sej.InvalidNameError, match="client id"):
        Client("127.0.0.1:1", client_id=name)


def test_it_takes_no_jobs(client: Client) -> None:
    for attempt in (
        lambda: JobCalls(client).stage("01", "02", 0, 0, b"x"),
        lambda: JobCalls(client).seal("01", []),
        lambda: JobCalls(client).commit("01", "log", 0, []),
        lambda: JobCalls(client).abort("01"),
    ):
        with pytest.raises(hub.NotSupportedError, match="is a hub of the Go SEJ: it takes no jobs"):
            attempt()
    assert client.put("j", EDGES) == len(EDGES)
