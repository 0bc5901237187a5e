"""What the page may change: only with the option, the role, the form and the origin; and each change is logged."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import sej
from hub.tokens import hash_token, make_token
from tests.hub.page.browsing import Answer, Client, address_of, filled, serving
from tests.hub.page.test_pages import contents


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = filled(tmp_path / "orders", 10)
    with sej.Offset(path, "mailer") as kept:
        kept.commit(8)
    return path


@pytest.fixture
def client(orders: Path) -> Iterator[Client]:
    with serving(orders, allow_changes=True) as found:
        yield found


def fields(page: Answer) -> dict[str, str]:
    """The hidden fields of the form that makes the change."""
    form = page.text[page.text.index('method="post"') :]
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))


@pytest.fixture
def preview(client: Client, orders: Path) -> dict[str, str]:
    page = client.get(address_of("/change/reader", orders, reader="mailer", to="3"))
    assert "to 3: 5 messages will be read again" in page.words
    assert "next: 3" in page.words
    return fields(page)


def test_a_reader_is_moved_as_the_preview_showed(
    client: Client, orders: Path, preview: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert sej.read_offset(orders, "mailer") == 8
    with caplog.at_level(logging.INFO, "hub.page"):
        answer = client.post("/change/reader", preview)
    assert (answer.status, answer.headers["location"]) == (303, f"/journal?path={str(orders).replace('/', '%2F')}")
    assert sej.read_offset(orders, "mailer") == 3
    (record,) = caplog.records
    assert re.fullmatch(rf"127\.0\.0\.1:\d+ moved reader 'mailer' of {orders} from 8 to 3", record.getMessage()), (
        record.getMessage()
    )


def test_a_reader_that_moved_meanwhile_is_left(client: Client, orders: Path, preview: dict[str, str]) -> None:
    with sej.Offset(orders, "mailer") as kept:
        kept.commit(9)
    answer = client.post("/change/reader", preview)
    assert answer.status == 409
    assert "is at 9 now" in answer.words
    assert sej.read_offset(orders, "mailer") == 9


def test_a_work_queue_is_left(client: Client, orders: Path, preview: dict[str, str]) -> None:
    with sej.open_queue(orders, "jobs") as queue:
        queue.get_many(2, timeout=0)
    page = client.get(address_of("/journal", orders))
    assert "Move reader mailer" in page.text and "Move reader jobs" not in page.text
    assert "work queue 'jobs'" in client.get(address_of("/change/reader", orders, reader="jobs", to="3")).words
    answer = client.post(
        "/change/reader", preview | {"reader": "jobs", "target": "3", "seen": str(sej.read_offset(orders, "jobs"))}
    )
    assert (answer.status, "work queue 'jobs'" in answer.text.replace("&#39;", "'")) == (404, True)
    assert sej.read_offset(orders, "jobs") in (None, 0)


def test_a_reader_that_runs_is_left(client: Client, orders: Path, preview: dict[str, str]) -> None:
    with sej.Offset(orders, "mailer"):
        assert client.post("/change/reader", preview).status == 409
    assert sej.read_offset(orders, "mailer") == 8


@pytest.mark.parametrize("to", ["11", "soon", "-1"])
def test_a_place_that_does_not_exist(client: Client, orders: Path, preview: dict[str, str], to: str) -> None:
    assert client.get(address_of("/change/reader", orders, reader="mailer", to=to)).status == 400
    assert client.post("/change/reader", preview | {"target": to}).status == 400
    assert sej.read_offset(orders, "mailer") == 8


def test_what_is_forged_changes_nothing(client: Client, orders: Path, preview: dict[str, str]) -> None:
    before = contents(orders)
    other = Client(client.origin)
    assert client.post("/change/reader", preview, Origin="http://evil.example").status == 403
    assert client.post("/change/reader", preview, Origin="null").status == 403
    assert client.ask("POST", "/change/reader", "secret=" + preview["secret"]).status == 403  # no origin
    assert client.post("/change/reader", preview | {"secret": "x"}).status == 403
    assert client.post("/change/reader", preview | {"secret": ""}).status == 403
    assert other.post("/change/reader", preview).status == 403  # the secret of another browser
    assert client.post("/change/reader", preview | {"path": "/etc"}).status == 404
    assert client.post("/change/reader", preview | {"reader": "../x"}).status == 404
    assert client.post("/change/reader", preview | {"more": "x" * 70_000}).status == 413
    assert contents(orders) == before


def test_without_the_option_nothing_can_be_changed(orders: Path, tmp_path: Path) -> None:
    with serving(orders) as client:
        assert "Move" not in client.get(address_of("/journal", orders)).words
        assert client.get(address_of("/change/reader", orders, reader="mailer")).status == 404
        form = {"path": str(orders), "reader": "mailer", "target": "3", "seen": "8"}
        assert client.post("/change/reader", form).status == 403
    assert sej.read_offset(orders, "mailer") == 8


def test_only_a_token_that_may_change_changes(orders: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    view, change = make_token(), make_token()
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hash_token(view)} view alice\n{hash_token(change)} change bob\n")
    with serving(orders, allow_changes=True, tokens=tokens) as client, caplog.at_level(logging.INFO, "hub.page"):
        client.post("/login", {"token": view})
        form = fields(client.get(address_of("/change/reader", orders, reader="mailer", to="first")))
        answer = client.post("/change/reader", form)
        assert answer.status == 403
        assert "may only look" in answer.text
        client.post("/login", {"token": change})
        assert client.post("/change/reader", form).status == 303
    assert sej.read_offset(orders, "mailer") == 0
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == ["bob"]


@pytest.mark.parametrize("action", ["redrive", "delete"])
def test_a_dead_letter(tmp_path: Path, action: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mails"
    with sej.open_queue(path, "sender", max_attempts=1) as queue:
        queue.put_many([b"to <alice>", b"to bob"], headers={"tenant": "a"})
        for _ in range(2):
            item = queue.get(0)
            assert item is not None
            with suppress(OSError), item:
                raise OSError("no <such> user")
        with serving(path) as client:
            letter = client.get(address_of("/queue/dead-letter", path, name="sender", offset=0)).text
            assert "tenant: a" in letter and "<form" not in letter
            assert "raise OSError(&#34;no &lt;such&gt; user&#34;)" in letter
        with serving(path, allow_changes=True) as client, caplog.at_level(logging.INFO, "hub.page"):
            page = client.get(address_of("/queue", path, name="sender"))
            assert page.text.count("Redrive or delete") == 2
            page = client.get(address_of("/change/dead-letter", path, name="sender", offset=0))
            assert "&lt;alice&gt;" in page.text
            form = fields(page)
            assert client.post("/change/dead-letter", form | {"action": "explode"}).status == 400
            answer = client.post("/change/dead-letter", form | {"action": action})
            assert answer.status == 303
            assert client.post("/change/dead-letter", form | {"action": action}).status == 409
            assert client.get(address_of("/change/dead-letter", path, name="sender", offset=0)).status == 404
            assert "dead 1" in client.get(answer.headers["location"]).words
        again = queue.get(0)
        assert (again.value if again else None) == (b"to <alice>" if action == "redrive" else None)
        assert queue.redrive() == 1  # the other one
    assert ("put back" if action == "redrive" else "deleted") in caplog.text


def test_a_queue_is_paused_and_resumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mails"
    with sej.open_queue(path, "sender") as queue:
        queue.put_many([b"a", b"b"])
        held = queue.get(0)
        assert held is not None
        with serving(path, allow_changes=True) as client, caplog.at_level(logging.INFO, "hub.page"):
            show = address_of("/change/pause", path, name="sender")
            page = client.get(address_of("/queue", path, name="sender"))
            assert "delivery on Pause" in page.words
            assert show.replace("&", "&amp;") in page.text
            shown = client.get(show)
            assert "delivers items. 1 items are ready, and workers hold 1." in shown.words
            form = fields(shown)
            assert client.post("/change/pause", form).status == 400
            assert client.post("/change/pause", form | {"action": "explode"}).status == 400
            assert client.post("/change/pause", form | {"action": "resume"}).status == 409
            assert not queue.stats().paused and not caplog.records
            answer = client.post("/change/pause", form | {"action": "pause"})
            assert (answer.status, queue.stats().paused, queue.get(0)) == (303, True, None)
            assert "delivery paused Resume" in client.get(answer.headers["location"]).words
            answer = client.post("/change/pause", form | {"action": "pause"})
            assert answer.status == 409 and "was paused before" in answer.words
            assert "is paused: no item is delivered" in client.get(show).words
            assert client.post("/change/pause", form | {"action": "resume"}).status == 303
            again = queue.get(0)
            assert again is not None and again.value == b"b"
    assert [re.sub(r"^127\.0\.0\.1:\d+ ", "", record.getMessage()) for record in caplog.records] == [
        f"paused queue 'sender' of {path}",
        f"resumed queue 'sender' of {path}",
    ]


def test_a_schedule_is_paused_and_resumed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "mails"
    with sej.open_queue(path, "sender") as queue:
        queue.put(b"x", every="1h", schedule="hourly")
        with serving(path, allow_changes=True) as client, caplog.at_level(logging.INFO, "hub.page"):
            show = address_of("/change/pause", path, name="sender", schedule="hourly")
            assert show.replace("&", "&amp;") in client.get(address_of("/queue", path, name="sender")).text
            form = fields(client.get(show))
            assert client.post("/change/pause", form | {"action": "resume"}).status == 409
            assert client.post("/change/pause", form | {"action": "pause"}).status == 303
            assert [one.paused for one in queue.schedules] == [True]
            assert "is paused: its times pass without items" in client.get(show).words
            assert client.post("/change/pause", form | {"action": "resume"}).status == 303
            assert [one.paused for one in queue.schedules] == [queue.stats().paused] == [False]
            queue.schedules.remove("hourly")
            answer = client.post("/change/pause", form | {"action": "pause"})
            assert (answer.status, "was removed before" in answer.words, client.get(show).status) == (409, True, 404)
    assert f"paused schedule 'hourly' of queue 'sender' of {path}" in caplog.text
