"""The page in a real browser: what people do with it, with eyes, with a keyboard and with a reader of the screen.

Every page of these tests fails if the browser reports an error, a refused script, or a request to another host.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Playwright, Request, expect, sync_playwright

import hub
import sej
import shard
from hub.page.serving import PageServer
from hub.tokens import hash_token, make_token
from tests.hub.page.browsing import address_of, filled, started
from tests.hub.support import at

pytestmark = pytest.mark.browser
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SWITCHES += ["--renderer-process-limit=1"]  # else one process more waits in reserve for each page
IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
WAIT_MS = 30_000
Opener = Callable[..., Page]


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    program = (Path(sys.prefix) / "chromium").read_text().strip()
    found = playwright.chromium.launch(executable_path=program, args=SWITCHES)
    yield found
    found.close()


class Profile:
    """A tab that several tests use, one after the other: to start one for each took most of the browser's time."""

    def __init__(self, browser: Browser, options: dict[str, Any]) -> None:
        self.context = browser.new_context(**({"timezone_id": "UTC", "locale": "en-GB"} | options))
        self.context.set_default_timeout(WAIT_MS)
        self.page = self.context.new_page()
        self.listeners: dict[Any, Callable[[Any], None]] = {}

    def open(self, url: str, expected: str, wrong: list[str]) -> Page:
        """Open an address, and collect what is wrong until the page is left."""

        def says(message: ConsoleMessage) -> None:
            ended = "net::ERR_" in message.text  # the server of the test ended first, and the page tries to reconnect
            if message.type == "error" and not ended and not (expected and expected in message.text):
                wrong.append(message.text)

        def asks(request: Request) -> None:
            if urlsplit(request.url).netloc != urlsplit(url).netloc:
                wrong.append(f"a request to {request.url}")

        self.leave()
        self.listeners = {
            "console": says,
            "pageerror": lambda error: wrong.append(str(error)),
            "dialog": lambda dialog: wrong.append(f"a dialog: {dialog.message}"),
            "request": asks,
        }
        for event, listener in self.listeners.items():
            self.page.on(event, listener)
        self.page.goto(url)
        return self.page

    def leave(self) -> None:
        """Leave the page, and forget what it stored."""
        if self.listeners:
            self.page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
            self.page.remove_listener("request", self.listeners.pop("request"))
            self.page.goto("about:blank")
            for event, listener in self.listeners.items():
                self.page.remove_listener(event, listener)
            self.listeners = {}
            self.context.clear_cookies()


@pytest.fixture(scope="module")
def profiles(browser: Browser) -> Iterator[dict[str, Profile]]:
    """The tabs, by their options."""
    found: dict[str, Profile] = {}
    yield found
    for profile in found.values():
        profile.context.close()


@pytest.fixture
def opened(browser: Browser, profiles: dict[str, Profile]) -> Iterator[Opener]:
    """Open an address without cookies or stored data of others; the errors of the browser fail the test."""
    wrong: list[str] = []

    def open_page(url: str, *, expected: str = "", **options: Any) -> Page:
        key = repr(sorted(options.items()))
        if key not in profiles:
            profiles[key] = Profile(browser, options)
        return profiles[key].open(url, expected, wrong)

    yield open_page
    for profile in profiles.values():
        profile.leave()
    assert wrong == []


@contextmanager
def stuck_reader(path: Path) -> Iterator[None]:
    """A reader that runs, and committed nothing for an hour although it has messages of an hour ago."""
    with sej.Writer(path) as writer:
        writer.append_many([b"x"] * 20, timestamp=time.time_ns() - 3600 * 10**9)
    with sej.Offset(path, "billing") as kept:
        kept.commit(5)
        hour = time.time() - 3600
        os.utime(path / "ofs" / "billing.ofs", (hour, hour))
        yield


def test_find_a_stuck_reader(tmp_path: Path, opened: Opener) -> None:
    with stuck_reader(tmp_path / "orders"), PageServer([tmp_path], port=0) as server:
        page = opened(server.url)
        expect(page.get_by_text("it is stuck at 5")).to_be_visible()
        page.get_by_role("link", name="1 problem").click()
        row = page.get_by_role("row", name="reader billing")
        expect(row).to_contain_text("problem")
        expect(row).to_contain_text("it is stuck at 5 or a later message: no commit for 60 min")
        page.get_by_label("Path").get_by_role("link", name=str(tmp_path / "orders")).click()
        expect(page.get_by_role("row", name="billing")).to_contain_text(f"pid={os.getpid()} ")


def test_a_change_between_press_and_release_loses_no_click(tmp_path: Path, opened: Opener) -> None:
    path = tmp_path / "mails"
    with sej.open_queue(path, "sender") as queue, PageServer([path], port=0, allow_changes=True) as server:
        queue.put(b"to alice")
        page = opened(server.url)
        page.get_by_role("link", name=str(path)).first.click()
        page.get_by_role("link", name="Queue sender").click()
        page.get_by_role("link", name="Pause", exact=True).hover()
        page.mouse.down()
        counts = page.locator("#counts")
        counts.evaluate("(element) => { put(element, element.innerHTML); put(element, element.innerHTML + 'new'); }")
        page.mouse.move(0, 0)
        page.mouse.up()  # elsewhere: no click
        expect(counts).to_contain_text("new")
        page.get_by_role("link", name="Pause", exact=True).hover()
        page.mouse.down()
        counts.evaluate("(element) => put(element, element.innerHTML)")
        page.mouse.up()
        expect(page.get_by_role("button", name="Pause the queue")).to_be_visible()


def test_new_messages_are_shown(tmp_path: Path, opened: Opener) -> None:
    path = filled(tmp_path / "orders", 3)
    with PageServer([path], port=0) as server, sej.Writer(path) as writer:
        page = opened(server.url.rstrip("/") + address_of("/journal", path))
        rows = page.locator("#messages tbody tr")
        expect(rows).to_have_count(3)
        assert page.locator(".chart").count() == 0, "one sample is not a chart"
        expect(page.locator("#connection")).to_have_text("live")
        writer.append(b"four")
        expect(rows.first).to_contain_text("four")
        writer.append_many([b"more"] * 500)
        expect(rows).to_have_count(20)
        expect(page.locator("#facts .chart")).to_be_visible()


def test_a_page_of_many_journals_asks_less_often(
    tmp_path: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a look at this one journal took as much CPU time as at a million."""
    monkeypatch.setattr("hub.page.sampler._LOOKS", 1e-9)
    monkeypatch.setattr("hub.page.sampler._LONGEST_S", 3.0)
    filled(tmp_path / "orders", 3)
    with PageServer([tmp_path / "orders"], port=0) as server:
        page = opened(server.url)
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("#connection")).to_have_text("live, every 3 s")


def test_a_message_is_never_a_script(tmp_path: Path, opened: Opener) -> None:
    path = tmp_path / "orders"
    evil = b"<script>alert(1)</script><img src=x onerror=alert(2)>'\">"
    with sej.Writer(path) as writer:
        writer.append(evil, b"<b onclick=alert(3)>")
        with PageServer([path], port=0) as server:
            root = server.url.rstrip("/")
            page = opened(root + address_of("/journal", path))
            expect(page.locator("#messages")).to_contain_text("<script>alert(1)</script>")
            writer.append(evil)
            expect(page.locator("#messages tbody tr")).to_have_count(2)
            assert page.locator("#messages script, #messages img, #messages b").count() == 0
            page.get_by_role("link", name="0", exact=True).click()
            expect(page.get_by_role("region", name="Text")).to_have_text(evil.decode())
            assert page.locator("main script, main img").count() == 0


def test_a_token_that_is_missing_or_wrong(tmp_path: Path, opened: Opener) -> None:
    token, tokens = make_token(), tmp_path / "tokens"
    tokens.write_text(f"{hash_token(token)} view alice")
    with PageServer([filled(tmp_path / "orders")], port=0, tokens=tokens) as server:
        page = opened(server.url, expected="401")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("unknown")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.get_by_text("You are alice")).to_be_visible()
        expect(page.locator("#connection")).to_have_text("live")
        tokens.write_text("")
        expect(page.locator("#connection")).to_contain_text("signed out")
        page.reload()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_the_hub_restarts_while_the_page_is_open(tmp_path: Path, opened: Opener, port: int) -> None:
    root = tmp_path / "hub"
    with hub.Store(root) as store:
        store.put("EWR", "flights", [at(0, 5)])
    words = ("hub", "serve", "--address", "127.0.0.1:0", "--page", str(port), root)
    with started(*words) as first:
        assert first.stdout is not None
        first.stdout.readline()
        page = opened(f"http://127.0.0.1:{port}/?in={root}")
        expect(page.locator("#connection")).to_have_text("live")
        first.terminate()
        assert first.wait(60) == 0
    expect(page.locator("#connection")).to_contain_text("connection lost")
    with hub.Store(root) as store:
        store.put("JFK", "flights", [at(0, 6)])
    with started(*words) as second:
        assert second.stdout is not None
        second.stdout.readline()
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.get_by_role("rowheader", name="JFK")).to_be_visible()


@pytest.fixture(scope="module")
def everything() -> Iterator[tuple[str, Path]]:
    """A server with one of each."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        limit = sej.Limit("key", concurrency=2, rate="100/m")
        with sej.open_queue(root / "data" / "mails", "sender", max_attempts=1, limit=limit) as queue:
            queue.put(b"totals", every="1h", schedule="hourly")
            queue.put(b"totals", every="1d", schedule="daily")
            queue.schedules.pause("daily")
            queue.put_many([b'{"to": "alice"}', b'{"to": "bob"}', b'{"to": "carol"}'], [b"a", b"b", b"c"])
            queue.put(b"later", delay_s=3600)
            held, dead = queue.get(0), queue.get(0)
            assert held is not None
            assert dead is not None
            dead.fail("no such user")
            with hub.Store(root / "hub") as store, hub.Merge(root / "hub", "report"):
                store.put("EWR", "flights", [at(0, time.time_ns())])
            with shard.Writer(shard.Path(root / "sharded", "orders", 1)) as writer:
                writer.append_many([b"x"] * 9, [b"%d" % number for number in range(9)])
            (root / "data" / "jobs.tq").write_text("- ship 17\n\\retries=2 \n= done\n! failed\n# a comment\nwhat\n")
            with (
                stuck_reader(root / "data" / "orders"),
                PageServer([root / "data", root / "hub", root / "sharded"], port=0, allow_changes=True) as server,
            ):
                yield server.url.rstrip("/"), root


def pages(root: Path) -> dict[str, str]:
    mails, orders = root / "data" / "mails", root / "data" / "orders"
    return {
        "overview": "/",
        "journal": address_of("/journal", orders),
        "messages": address_of("/journal/messages", mails, at=1),
        "message": address_of("/journal/message", mails, offset=0),
        "state": address_of("/journal/damage", orders),
        "queue": address_of("/queue", mails, name="sender"),
        "hub": f"/?in={root / 'hub'}",
        "sharded journal": f"/?in={root / 'sharded' / 'orders.1'}",
        "text queue": address_of("/text-queue", root / "data" / "jobs.tq"),
        "reader": address_of("/change/reader", orders, reader="billing", to="first"),
        "dead letter": address_of("/change/dead-letter", mails, name="sender", offset=1),
        "pause": address_of("/change/pause", mails, name="sender"),
        "pause of a schedule": address_of("/change/pause", mails, name="sender", schedule="hourly"),
        "form of the token": "/login",
    }


_COLOURFUL = {"overview", "state", "queue", "text queue", "dead letter", "pause"}
"""The pages that have all colours."""


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_everyone_can_use_every_page(everything: tuple[str, Path], opened: Opener, theme: str) -> None:
    url, root = everything
    page = opened(url, color_scheme=theme, viewport={"width": 400, "height": 800})
    # The themes differ in colours only.
    only: dict[str, Any] = {"runOnly": ["color-contrast"]} if theme == "dark" else {}
    for name, address in pages(root).items():
        if only and name not in _COLOURFUL:
            continue
        answer = page.goto(url + address)
        assert answer is not None
        assert answer.status == 200, name
        found = Axe().run(page, options={"resultTypes": ["violations"]} | only)
        assert found.violations_count == 0, f"{name}\n{found.generate_report()}"
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 400, f"{name} is {width} wide"


def test_a_page_that_does_not_exist_is_one_that_everyone_can_use(everything: tuple[str, Path], opened: Opener) -> None:
    page = opened(everything[0] + "/nothing", expected="404")
    assert Axe().run(page).violations_count == 0


def test_the_keyboard_is_enough(everything: tuple[str, Path], opened: Opener) -> None:
    url, root = everything
    page = opened(url)
    expect(page.locator("#connection")).to_have_text("live")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_label("Path contains")).to_be_focused()
    page.keyboard.type("mails")
    page.keyboard.press("Enter")
    link = page.get_by_role("rowheader").get_by_role("link")
    expect(link).to_have_count(1)
    link.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=str(root / "data" / "mails"))).to_be_visible()
    expect(page.locator("#connection")).to_have_text("live")  # the script of the new page runs
    page.keyboard.press("o")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_link_keeps_the_focus_when_its_row_changes(tmp_path: Path, opened: Opener) -> None:
    path = filled(tmp_path / "orders", 3)
    with PageServer([path], port=0) as server:
        page = opened(server.url)
        link = page.get_by_role("rowheader").get_by_role("link")
        link.focus()
        with sej.Writer(path) as writer:
            writer.append_many([b"x"] * 1000)
        expect(page.get_by_role("cell", name="1,003")).to_be_visible()
        expect(link).to_be_focused()


def test_times_are_those_of_the_viewer(tmp_path: Path, opened: Opener) -> None:
    with sej.Writer(tmp_path / "orders") as writer:
        writer.append(b"x", timestamp=1_500_000_000_123_456_789)
    with PageServer([tmp_path / "orders"], port=0) as server:
        address = server.url.rstrip("/") + address_of("/journal/message", tmp_path / "orders", offset=0)
        for zone, shown in (("America/New_York", "13 Jul 2017, 22:40:00"), ("Asia/Tokyo", "14 Jul 2017, 11:40:00")):
            time_element = opened(address, timezone_id=zone).locator("time")
            expect(time_element).to_have_text(shown)
            expect(time_element).to_have_attribute("title", "2017-07-14T02:40:00.123456789Z")


def test_the_pictures_of_the_documents(tmp_path: Path, opened: Opener) -> None:
    """Take them; SEJ_PICTURES=1 puts them into docs/images."""
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        filled(Path("mails"), 40)
        with sej.Writer("logs") as writer:
            writer.append_many([b'{"level": "info", "text": "started"}'] * 2000)
        target = IMAGES if os.environ.get("SEJ_PICTURES") else tmp_path
        with stuck_reader(Path("orders")), PageServer(["orders", "mails", "logs"], port=0) as server:
            for name, address in (("overview", "/"), ("journal", address_of("/journal", Path("orders")))):
                for theme in ("light", "dark"):
                    size = {"width": 1100, "height": 760}
                    page = opened(server.url.rstrip("/") + address, color_scheme=theme, viewport=size)
                    expect(page.locator("#connection")).to_have_text("live")
                    picture = target / f"page-{name}-{theme}.png"
                    page.screenshot(path=picture)
                    assert picture.stat().st_size > 1000
                    assert (IMAGES / picture.name).exists()
    finally:
        os.chdir(here)
