"""The pages of what holds more than messages: queues, hubs, sharded journals and text queues."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from urllib.parse import quote

import hub
import sej
import shard
import textqueue
from hub.wire import Client as HubClient
from tests.hub.page.browsing import Client, address_of, serving, started
from tests.hub.support import at
from tests.queue.support import FakeClock, opened
from tests.sej.hooks import until


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


def test_a_text_queue_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_text("- one\nnonsense\n")
    with serving(path) as client:
        page = client.get(address_of("/text-queue", path)).words
        assert "Probable mistakes line 2, column 1" in page
        path.unlink()
        assert client.get(address_of("/text-queue", path)).status == 404
