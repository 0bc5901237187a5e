"""The pages over HTTP: what each shows of real journals, queues, hubs, sharded journals and text queues."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

import hub
import sej
import shard
import textqueue
from hub.page.sampler import Sampler
from hub.page.serving import PageServer
from hub.wire import Client as HubClient
from sej.cli.shared.readers import Sample, Watched
from sej.system.disk import Mode, OsDisk, OsFile
from tests.hub.page.browsing import Client, address_of, filled, serving, started
from tests.hub.support import at
from tests.queue.support import FakeClock, opened
from tests.sej.hooks import until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    filled(tmp_path / "data" / "orders", 120, segment_bytes=2000)
    filled(tmp_path / "data" / "logs", 3)
    with sej.Offset(tmp_path / "data" / "orders", "mailer") as kept:
        kept.commit(20)
    return tmp_path / "data"


@pytest.fixture
def client(root: Path) -> Iterator[Client]:
    with serving(root) as found:
        yield found


def test_the_overview_shows_every_journal(client: Client, root: Path) -> None:
    page = client.get("/").words
    assert f"{root / 'orders'} ✓ sound 120" in page
    assert "mailer 100" in page
    assert "Journals 2" in page
    assert client.get("/", filter="LOG").words.count(str(root)) == 1
    by_lag = client.get("/", sort="lag").words
    assert by_lag.index("orders") < by_lag.index("logs")
    assert client.get("/", sort="colour").status == 400


def test_names_of_files_that_are_not_utf_8(tmp_path: Path) -> None:
    for name in (b"sound", b"caf\xe9"):
        with sej.Writer(tmp_path / os.fsdecode(name)) as writer:
            writer.append(b"value", b"k\xff")
    (tmp_path / os.fsdecode(b"\xff.tq")).write_text("-a job\n")
    with serving(tmp_path) as client:
        overview = client.get("/")
        assert f"{tmp_path}/caf? ✓ sound 1" in overview.words
        folder = quote(f"{tmp_path}/", safe="")
        for address in (f"/journal?path={folder}caf%E9", f"/text-queue?path={folder}%FF.tq"):
            assert f'href="{address}"' in overview.text
            assert client.ask("GET", address).status == 200
        assert "value" in client.ask("GET", f"/journal/messages?path={folder}caf%E9&key=k%FF").words


def test_a_journal_of_large_messages_shows_its_newest(tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "large") as writer:
        for n in range(25):
            writer.append(b"message %d" % n + b"." * 300_000)
    with serving(tmp_path / "large") as client:
        words = client.get(address_of("/journal", tmp_path / "large")).words
    assert "message 24" in words and "message 5" in words and "message 4." not in words


@pytest.mark.parametrize("small_bytes", [1 << 20, 0])
def test_the_state_has_all_that_the_overview_reports(
    root: Path, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    """Every message of a small journal is read. Of a large one, the damage of the last full check is shown."""
    monkeypatch.setattr("hub.page.sampler._SMALL_BYTES", small_bytes)
    journal = str(root / "orders")
    segment = sorted((root / "orders" / "jnl").iterdir())[1]
    segment.write_bytes(segment.read_bytes()[:200] + bytes(100) + segment.read_bytes()[300:])
    sampler = Sampler([root])
    if not small_bytes:
        assert not any(one.what == "damage" for one in sampler.check(journal)[0]), "it is not called sound either"
        assert any(one.what == "damage" for one in sampler.check(journal, full=True)[0])
    found, full = sampler.check(journal)
    assert (full, "problem") == (bool(small_bytes), next(one.level for one in found if one.what == "damage"))
    sampler._take()
    assert sampler.round.problems[journal] == [f"{one.what}: {one.found}" for one in found if one.level == "problem"]
    sej.Journal(journal).repair()
    assert all(one.level != "problem" for one in sampler.check(journal, full=True)[0])
    assert all(one.level != "problem" for one in sampler.check(journal)[0])


def test_a_journal_that_breaks_is_one_click_away(client: Client, root: Path) -> None:
    segment = sorted((root / "orders" / "jnl").iterdir())[1]
    data = bytearray(segment.read_bytes())
    data[100] ^= 255
    segment.write_bytes(data)
    found = client.get(address_of("/journal/damage", root / "orders", full=1))
    assert "✗ problem damage" in found.words
    assert f"cp COPY/jnl/{segment.name} {segment}" in found.words
    until(lambda: "Problems" in client.get("/").words)  # the next samples have it
    assert address_of("/journal/damage", root / "orders").replace("/", "%2F")[-20:] in client.get("/").text


def test_a_path_that_is_removed_is_a_problem_and_the_others_are_sampled(root: Path) -> None:
    sampler = Sampler([root / "logs", root / "orders"])
    shutil.rmtree(root / "logs")
    filled(root / "orders", 5)
    sampler._take()
    assert sampler.round.samples[str(root / "orders")].end_offset == 125
    assert list(sampler.round.problems) == [str(root / "logs")]


def test_a_large_journal_that_breaks_at_its_end_is_found(tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "large") as writer:
        writer.append_many([b"x" * 1000] * 2000)
    (segment,) = (tmp_path / "large" / "jnl").iterdir()
    data, two = segment.read_bytes(), 2 * 1030
    segment.write_bytes(data[:-two] + b"\xff" * 8 + data[-two:])
    with serving(tmp_path / "large") as client:
        until(lambda: "damage: " in client.get("/").words)


def test_a_reader_whose_offset_is_wrong_is_a_problem(root: Path) -> None:
    (root / "logs" / "ofs").mkdir(exist_ok=True)
    (root / "logs" / "ofs" / "ahead.ofs").write_bytes((900).to_bytes(8, "big"))
    with serving(root) as client:
        page = client.get("/").words
        assert "Problems" in page
        assert "its offset 900 is past the journal's end 3" in page


def test_a_journal(client: Client, root: Path) -> None:
    page = client.get(address_of("/journal", root / "orders"))
    assert page.status == 200
    assert "Offsets 0 to 119" in page.words
    assert "mailer 20 100" in page.words
    assert "value 119" in page.words
    assert "value 99" not in page.words
    assert "0000000000000000.jnl" in page.text


def test_messages_by_offset_time_and_key(client: Client, root: Path) -> None:
    orders = root / "orders"
    page = client.get(address_of("/journal/messages", orders, at=30)).words
    assert "value 30 " in page
    assert "value 79 " in page
    assert "value 80 " not in page
    assert "value 29 " not in page
    found = client.get(address_of("/journal/messages", orders, key="key 1")).text
    assert found.count('<td class="data">key 1</td>') == 40
    assert '<td class="data">key 2</td>' not in found
    assert "value 0 " in client.get(address_of("/journal/messages", orders, at="1h ago")).words
    assert "No message among 0" in client.get(address_of("/journal/messages", orders, at=5000)).words
    assert "Next" not in client.get(address_of("/journal/messages", orders, at=100)).words
    assert client.get(address_of("/journal/messages", orders, at="soon")).status == 400


def test_a_search_of_a_key_ends_and_continues(tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "many") as writer:
        for _ in range(40):
            writer.append_many([b"x"] * 10_000)
        writer.append(b"the needle", b"rare")
    with serving(tmp_path / "many") as client:
        address, searches = address_of("/journal/messages", tmp_path / "many", key="rare"), 0
        while "the needle" not in (page := client.get(address)).words:
            following = page.text.split("&amp;at=")[-1].split("&amp;")[0]
            address, searches = (
                address_of("/journal/messages", tmp_path / "many", key="rare", at=following),
                searches + 1,
            )
            assert searches < 1000


def test_a_message_as_text_json_and_hex(client: Client, root: Path) -> None:
    with sej.Writer(root / "logs") as writer:
        writer.append(b'{"b": [1, 2]}', b"k\x00")
        writer.append(b"<script>alert(1)</script>", b'"><b>')
        writer.append(bytes(range(256)))
    page = client.get(address_of("/journal/message", root / "logs", offset=3))
    assert "{\n  &#34;b&#34;: [\n    1,\n    2\n  ]\n}" in page.text
    assert "00000000 7b 22 62 22" in page.words
    assert "k\\x00" in page.words
    page = client.get(address_of("/journal/message", root / "logs", offset=4))
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    assert '"><b>' not in page.text
    assert client.get(address_of("/journal/message", root / "logs", offset=5)).status == 200
    assert client.get(address_of("/journal/message", root / "logs", offset=6)).status == 404
    assert client.get(address_of("/journal/message", root / "logs", offset="x")).status == 400


def test_a_download_is_the_bytes_and_is_not_shown(client: Client, root: Path) -> None:
    with sej.Writer(root / "logs") as writer:
        writer.append(b"<html>\x00\xff")
    answer = client.get(address_of("/journal/value", root / "logs", offset=3))
    assert answer.data == b"<html>\x00\xff"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="message-3.bin"'
    assert client.get(address_of("/journal/value", root / "logs", offset=4)).status == 404


def test_a_path_that_was_not_given_is_not_found(client: Client) -> None:
    for page in ("", "/messages", "/message", "/damage", "/value"):
        for path in ("", "/etc", "../orders", "orders/../orders", "\0"):
            assert client.get(f"/journal{page}?path={quote(path)}").status == 404, (page, path)


def test_a_link_that_comes_later_is_noticed(root: Path, tmp_path: Path) -> None:
    sampler = Sampler([root])
    path = str(root / "logs")
    assert sampler.round.samples[path].error is None
    sampler.interval_s = 0
    assert sampler.round.samples[path].error is None
    os.rename(root / "logs" / "ofs", tmp_path / "away")
    (root / "logs" / "ofs").symlink_to(tmp_path / "away")
    sampler.interval_s = 0
    assert "symbolic link leads out" in str(sampler.round.samples[path].error)
    (root / "logs" / "ofs").unlink()
    sampler.interval_s = 0
    assert sampler.round.samples[path].error is None


@pytest.mark.parametrize("linked", ["", "jnl", "jnl/0000000000000000.jnl", "ofs"])
def test_a_link_out_of_the_paths_is_not_followed(root: Path, tmp_path: Path, linked: str) -> None:
    private, link = tmp_path / "private", root / "link"
    filled(private, 3)
    sej.Offset(private, "secret").close()
    if linked:
        shutil.copytree(root / "logs", link)
        shutil.rmtree(link / linked) if (link / linked).is_dir() else (link / linked).unlink()
    (link / linked).symlink_to(private / linked)
    (root / "link.tq").symlink_to(tmp_path / "secret.tq")
    (tmp_path / "secret.tq").write_text("- secret\n")
    (root / "inner").symlink_to(root / "orders")
    with serving(root) as client:
        overview = client.get("/").words
        assert f"{link} a symbolic link leads out of the paths of this page" in overview
        assert "secret" not in overview
        for page in ("", "/messages", "/message", "/damage", "/value"):
            assert client.get(f"/journal{page}", path=str(link)).status == 404
        assert client.get("/text-queue", path=str(root / "link.tq")).status == 404
        assert client.get("/journal", path=str(root / "inner")).status == 200
    with serving(root, private, tmp_path / "secret.tq") as client:  # the way out
        answer = client.get("/journal", path=str(link))
        assert answer.status == (503 if linked else 200)  # below a journal no link is followed
        assert ("symbolic link" in answer.words) is bool(linked)
        assert "secret" in client.get("/text-queue", path=str(tmp_path / "secret.tq")).words


def test_names_come_first_if_there_are_many_journals(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look, free = Watched.look, threading.Event()

    def late(watched: Watched) -> list[Sample]:
        assert free.wait(60)
        return look(watched)

    monkeypatch.setattr(Watched, "look", late)
    monkeypatch.setattr("hub.page.sampler._PATIENCE_S", 0.0)
    with serving(root) as client:
        page = client.get("/").words
        assert f"{root / 'orders'} not checked yet this journal is being read" in page and "With problems 0" in page
        free.set()
        until(lambda: f"{root / 'orders'} ✓ sound 120" in client.get("/").words)


def test_a_journal_that_comes_later_is_shown(client: Client, root: Path) -> None:
    assert "later" not in client.get("/").words
    filled(root / "later")
    until(lambda: "later" in client.get("/").words)


def test_unchanged_journals_are_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    watched = Watched([root])
    before = watched.look()
    really = OsDisk.open

    def note(disk: OsDisk, path: str, mode: Mode) -> OsFile:
        opened.append(os.path.relpath(path, root))
        return really(disk, path, mode)

    monkeypatch.setattr(OsDisk, "open", note)
    again = watched.look()
    assert opened == []
    assert [row.end_offset for row in again] == [row.end_offset for row in before]
    with sej.Writer(root / "logs") as writer:
        writer.append(b"x")
    opened.clear()
    grown = {Path(row.path).name: row for row in watched.look()}
    assert grown["logs"].end_offset == 4
    assert {name.split("/")[0] for name in opened} == {"logs"}
    opened.clear()
    with sej.Offset(root / "orders", "mailer") as kept:
        held = {Path(row.path).name: row for row in watched.look()}
        assert held["orders"].readers[0][0].holder is not None
        kept.commit(50)
    moved = {Path(row.path).name: row for row in watched.look()}
    assert moved["orders"].readers[0][0].offset == 50
    assert moved["orders"].readers[0][0].holder is None


def connect_while_it_stops(path: Path) -> None:
    found: list[socket.socket] = []

    def connect() -> None:
        with suppress(OSError):
            while True:
                found.append(socket.create_connection(address, 10))

    with PageServer([path], port=0) as server:
        host, _, port = server.address.rpartition(":")
        address = (host, int(port))
        thread = threading.Thread(target=connect)
        thread.start()
        until(lambda: len(found) > 5)
    thread.join()
    for one in found:
        one.close()


@pytest.mark.long
def test_connections_that_come_while_the_server_stops_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hub.asgi._GRACE_S", 0.1)
    sej.Writer(tmp_path / "orders").close()
    for _ in range(8):
        connect_while_it_stops(tmp_path)
    gc.collect()  # an open socket warns when it is collected, and a warning fails the test


# --- the pages of what holds more than messages: queues, hubs, sharded journals and text queues


def contents(path: Path) -> dict[str, bytes | None]:
    """Every file below a path, with its bytes and without its times."""
    return {str(one.relative_to(path)): one.read_bytes() if one.is_file() else None for one in path.rglob("*")}


def test_a_queue(tmp_path: Path) -> None:
    path = tmp_path / "mails"
    with sej.open_queue(path, "sender", max_attempts=1) as queue, serving(path) as client:
        queue.put_many([b"to <alice>", b"to bob", b"to carol"])
        queue.put(b"later", delay_s=3600)
        held = queue.get(0)
        dead = queue.get(0)
        assert held is not None
        assert dead is not None
        dead.fail("no such <user>")
        quoted = str(path).replace("/", "%2F")
        assert f"/queue?path={quoted}&amp;name=sender" in client.get(address_of("/journal", path)).text
        until(lambda: "Dead letters 1 Oldest ready item" in client.get("/", sort="dead").words)
        before = contents(path)
        page = client.get(address_of("/queue", path, name="sender"))
        assert contents(path) == before
        words = page.words
        for state in ("ready 1", "delayed 1", "leased 1", "dead 1"):
            assert state in words
        leased, delayed = words.index("Leased"), words.index("Delayed Item")
        assert "to <alice>" in words[leased:delayed]
        assert f"pid={os.getpid()} " in words[leased:delayed]
        assert "later" in words[delayed : words.index("Dead Item")]
        assert "to bob 1 no such <user>" in words[words.index("Dead Item") :]
        assert "to carol" in words[words.index("Next to be taken") : leased]
        assert "to &lt;alice&gt;" in page.text
        held.done()
        assert "No item is leased." in client.get(address_of("/queue", path, name="sender")).words
        assert client.get(address_of("/queue", path, name="other")).status == 404
        assert client.get(address_of("/queue", path, name="../x")).status == 404


def test_schedules_and_a_limit(tmp_path: Path) -> None:
    path, behind = tmp_path / "mails", tmp_path / "behind"
    with opened(behind, FakeClock()) as late:
        late.put(b"<backup>", every="1h", schedule="hourly")  # the clock of the test is years behind
    with sej.open_queue(path, "sender", limit=sej.Limit("header:tenant", concurrency=1, rate="9/m")) as queue:
        queue.put(b"x", headers={"tenant": "a"})
        queue.put(b"<backup>", cron="0 3 * * mon-fri", timezone="Europe/Berlin", schedule="nightly")
        queue.put(b"tick", every=0.5, schedule="tick", missed="skip")
        queue.schedules.pause("tick")
        held = queue.get(0)
        assert held is not None
        with serving(tmp_path) as client:
            page = client.get(address_of("/queue", path, name="sender"))
            assert re.search(r"nightly 0 3 \* \* mon-fri Europe/Berlin \S+ \S+ UTC one item <backup> tick", page.words)
            assert "tick every 0.5 s paused no item tick" in page.words
            assert "limit for each kind header:tenant: 1 leased, 9/m kinds at their limit 1" in page.words
            assert "no worker runs" not in page.words
            assert "hourly every 3600 s" in (late_page := client.get(address_of("/queue", behind, name="worker")).words)
            assert "no worker runs" in late_page
            problem = "queue worker: schedule hourly: no worker put its item at"
            assert problem in client.get("/").words
            state = client.get(address_of("/journal/damage", behind)).words
            assert problem in state and state.index("! note") < state.index("✓ ok"), "what needs an action comes first"
            queue.pause()
            until(lambda: "paused" in client.get("/").words)


def test_a_hub(tmp_path: Path) -> None:
    with hub.Store(tmp_path / "hub") as store:
        store.put("EWR", "flights", [at(0, 5), at(1, 6)])
        store.put("host.example.com", "logs", [at(0, 7)])
    with hub.Merge(tmp_path / "hub", "report") as merged:
        next(iter(merged))
        merged.commit()
    with serving(tmp_path / "hub") as client:
        root = str(tmp_path / "hub")
        assert f'href="/?in={quote(root, safe="")}" title="{root}"' in client.get("/").text
        page = client.get("/", **{"in": root}).words
        assert "Clients 2 Journals 2" in page
        assert "EWR flights ✓ sound 2" in page
        assert "host.example.com logs ✓ sound 1" in page
        assert "report 2 2 0" in page, "a reader of all journals"
        assert "Refused calls are shown by" in page
        assert "EWR" not in client.get("/", filter="example", **{"in": root}).words
        assert client.get("/", **{"in": str(tmp_path)}).status == 404


def test_the_page_of_a_hub_that_serves(tmp_path: Path) -> None:
    options = ("hub", "serve", "--address", "127.0.0.1:0", "--page", "0", tmp_path / "hub")
    with started(*options) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        page = Client(running.stderr.readline().decode().split()[-1])
        address = running.stdout.readline().decode().split()[-1]
        with HubClient(address, client_id="EWR") as client:
            client.put("flights", [at(0, 5), at(1, 6)])
            try:
                client.put("flights", [at(9, 5)])
            except hub.GapError:
                pass
            else:
                raise AssertionError("the hub took a gap")
        words = page.get("/", **{"in": str(tmp_path / "hub")}).words
        assert "Refused calls gap 1" in words
        assert "New messages since the start 2" in words
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0


def test_a_sharded_journal(tmp_path: Path) -> None:
    path = shard.Path(tmp_path / "data", "orders", 2)
    with shard.Writer(path) as writer:
        writer.append_many([b"x"] * 40, [b"%d" % number for number in range(40)])
    with sej.Offset(path.dir(0), "billing") as kept:
        kept.commit(1)
    with serving(tmp_path / "data") as client:
        name = str(tmp_path / "data" / "orders.2")
        assert "sharded journals orders.2" in client.get("/").words
        page = client.get("/", **{"in": name}).words
        assert "Shards 4 of 4 Messages 40" in page
        assert "Journals with a process billing" in page
        assert client.get("/", **{"in": name + "x"}).status == 404


def test_a_text_queue(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_text("- ship <b>17</b>\n\\retries=2 \n= done\n! failed\n# a comment\n  nothing of nothing\n")
    with textqueue.TextQueue(path) as queue, serving(tmp_path) as client:
        assert "text queues jobs.tq" in client.get("/").words
        before = contents(tmp_path)
        page = client.get(address_of("/text-queue", path))
        assert contents(tmp_path) == before
        assert "queued 1 cleared 1 critical 1 comment 1 claimed 0" in page.words
        assert "ship &lt;b&gt;17&lt;/b&gt;" in page.text
        with queue.claim() as message:
            assert message is not None
            assert f"{os.getpid()}@" in client.get(address_of("/text-queue", path)).words
        (tmp_path / "other.txt").write_text("- x\n")
        assert client.get(address_of("/text-queue", tmp_path / "other.txt")).status == 404
    path.write_text("- one\nnonsense\n")
    with serving(path) as client:  # alone
        assert "Probable mistakes line 2, column 1" in client.get(address_of("/text-queue", path)).words
        path.unlink()
        assert client.get(address_of("/text-queue", path)).status == 404
