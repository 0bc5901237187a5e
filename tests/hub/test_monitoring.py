"""The numbers of a server, and the dashboard and alert rules: they name what the code exports, and all of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

import hub
import sej
from hub.wire import Client, Copier, ServerTLS, status
from hub.wire.metrics import register, serve_metrics
from tests.cli.command import sej as run
from tests.hub.support import CERTIFICATES, at, fill, serving
from tests.sej.support import packed, sample, write

MONITORING = Path(__file__).resolve().parents[2] / "docs" / "monitoring"
FOREIGN = {"node_textfile_mtime_seconds": {"file"}}
"""What the node exporter exports."""
ADDED = {"le"}
_NAME = re.compile(r"\b((?:sej|node)_[a-z0-9_]+)(?:\{([^}]*)\})?")


def with_schedules(path: Path) -> None:
    """Make a paused queue with a limit, a schedule, and a paused one."""
    with sej.open_queue(path, "mails", limit=sej.Limit("key", concurrency=7)) as queue:
        queue.put(b"x", cron="46 17 20 11 *", schedule="yearly")
        queue.put(b"x", every="1h", schedule="hourly")
        queue.schedules.pause("hourly")
        queue.pause()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of every metric, by its name, as a server and the command print them."""
    root = tmp_path_factory.mktemp("exported")
    write(root / "orders", [b"x"])
    with_schedules(root / "orders")
    sej.Writer(root / "damaged").close()
    (root / "damaged" / "id").write_bytes(b"")
    text = run("stat", "--prometheus", root).stdout.decode()
    assert f'sej_problem{{journal="{root / "damaged"}",problem="identity"}} 1' in text, "and the others are reported"
    tls = ServerTLS(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    with serving(root / "hub", tls=tls) as (store, server):
        store.put("EWR", "flights", [at(0, 5)])
        with_schedules(root / "hub" / "EWR.flights")
        with hub.Merge(root / "hub", "report") as merged:
            next(iter(merged))
            merged.commit()
        server.service.guard.refusals["gap"] = 1
        text += generate_latest(register(server)).decode()
    here, there = f'{{journal="{root / "orders"}",', '{client="EWR",journal="flights",'
    for line in (
        f'sej_queue_paused{here}queue="mails"}} 1',
        f'sej_queue_limit{here}queue="mails"}} 7',
        f'sej_queue_kinds_at_limit{here}queue="mails"}} 0',
        f'sej_schedule_paused{here}schedule="hourly",queue="mails"}} 1',
        f'sej_hub_queue_paused{there}queue="mails"}} 1.0',
        f'sej_hub_queue_kinds_at_limit{there}queue="mails"}} 0.0',
    ):
        assert line in text.splitlines(), line
    times = re.findall(
        r'^sej_(?:hub_)?schedule_next_timestamp_seconds\{.*"(\w+ly)".*\} 1[0-9.e+]+$', text, re.MULTILINE
    )
    assert times == ["yearly"] * 2
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        found[name] |= set(re.findall(r'(\w+)="', labels))
    return found


def expressions() -> dict[str, str]:
    """Every expression, by what has it."""
    dashboard: dict[str, Any] = json.loads((MONITORING / "sej-dashboard.json").read_text())
    found = {
        f"{panel['title']} {target['refId']} {panel['id']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    found |= {one["name"]: one["definition"] for one in dashboard["templating"]["list"] if one["type"] == "query"}
    return found | {name: rule["expr"] for name, rule in alerts().items()}


def alerts() -> dict[str, Any]:
    """The rules by the names of their alerts."""
    rules: dict[str, Any] = yaml.safe_load((MONITORING / "sej-alerts.yaml").read_text())
    return {rule["alert"]: rule for group in rules["groups"] for rule in group["rules"]}


def test_every_name_is_exported(exported: dict[str, set[str]]) -> None:
    known = exported | FOREIGN
    asked = expressions()
    assert len(asked) > 30
    for what, expression in asked.items():
        names = _NAME.findall(expression)
        assert names, what
        for name, matchers in names:
            assert name in known, f"{what}: {name}"
            labels = set(re.findall(r"(\w+)\s*(?:=~|=|!=|!~)", matchers))
            assert labels <= known[name], f"{what}: {labels - known[name]}"
        for label in re.findall(r"by \((\w+)\)", expression):
            assert any(label in known[name] | ADDED for name, _ in names), f"{what}: {label}"


_SUFFIX = re.compile(r"_(sum|count|bucket|created|total)$")


def test_every_metric_is_used(exported: dict[str, set[str]]) -> None:
    used = {name for expression in expressions().values() for name, _ in _NAME.findall(expression)}
    families = {_SUFFIX.sub("", name) for name in used}
    assert {name for name in exported if _SUFFIX.sub("", name) not in families} == _ELSEWHERE


_ELSEWHERE = {
    "sej_reader_offset",  # an offset by itself says nothing
    "sej_hub_journal_bytes",
    "sej_hub_open_writers",
    "sej_hub_puts_total",
    "sej_hub_reader_leases",
    "sej_hub_stalled_total",
}


def test_what_a_copier_finds_fires_the_alert_and_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The copier sends no messages then, so it reports the gap or the conflict."""
    alert = alerts()["SejHubRefuses"]
    assert "The hub's log names it" in alert["annotations"]["description"]
    reasons = alert["expr"].partition('reason=~"')[2].partition('"')[0]
    own = tmp_path / "own"
    fill(own / "flights", sample(10))
    with serving(tmp_path / "hub") as (_, server), Client(server.address, client_id="EWR") as client:
        Copier(own, client).run_once()
        fill(own / "flights", sample(50, 10), segment_bytes=200)
        for segment in sej.Journal(own / "flights").segments[:-1]:
            Path(segment.path).unlink()
        fill(own / "other", sample(3))
        for name, kind in (("flights", hub.GapError), ("other", hub.ConflictError)):
            with pytest.raises(kind):
                Copier(own / name, client, journal_dir="flights").run_once()
        text = generate_latest(register(server)).decode()
    counted = re.findall(r'^sej_hub_refusals_total\{reason="(.*)"\} 1\.0$', text, re.MULTILINE)
    assert sorted(reason for reason in counted if re.fullmatch(reasons, reason)) == ["conflict", "gap"]
    lines = [record.message for record in caplog.records if record.name == "hub.wire.access"]
    assert ["EWR.flights: messages 10 to " in line for line in lines] == [True, False]
    assert "EWR.flights: the client's journal ends with 2, and messages up to 9 are here" in lines[1]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
@pytest.mark.parametrize("words", ["check rules sej-alerts.yaml", "test rules sej-alerts-test.yaml"])
def test_prometheus_takes_and_runs_the_rules(words: str) -> None:
    done = subprocess.run(["promtool", *words.split()], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_test_and_a_row_of_one_table() -> None:
    """And each is tested to fire."""
    tests = (MONITORING / "sej-alerts-test.yaml").read_text()
    pages = [(MONITORING.parent / "howto" / name).read_text() for name in ("alerts.md", "incidents.md")]
    for name in alerts():
        assert f'alertname="{name}"' in tests and sum(f"`{name}`" in page for page in pages) == 1, name


def test_every_reason_exists() -> None:
    reasons = set(status.REASONS)
    for what, expression in expressions().items():
        for found in re.findall(r'reason=~"([^"]*)"', expression):
            assert set(found.split("|")) <= reasons, what


def test_legends_use_labels_that_exist(exported: dict[str, set[str]]) -> None:
    dashboard: dict[str, Any] = json.loads((MONITORING / "sej-dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            names = [name for name, _ in _NAME.findall(target["expr"])]
            for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                assert any(label in exported[name] for name in names), (panel["title"], label)


def test_alerts_have_what_people_read() -> None:
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}, name


# --- the numbers of a server, as prometheus reads them


def test_every_number_is_there(tmp_path: Path) -> None:
    messages = sample(10)
    with serving(tmp_path) as (_, server), Client(server.address, client_id="a") as client:
        client.put("j", messages[:6])
        client.put("j", messages)
        with pytest.raises(hub.GapError):
            client.put("j", sample(1, 99))
        with sej.Offset(tmp_path / "a.j", "report") as offset:
            offset.commit(4)
        text = generate_latest(register(server)).decode()
    for line in (
        "sej_hub_puts_total 2.0",
        "sej_hub_messages_total 10.0",
        "sej_hub_resent_messages_total 6.0",
        f"sej_hub_bytes_total {float(len(packed(messages)))}",
        'sej_hub_refusals_total{reason="gap"} 1.0',
        "sej_hub_open_writers 1.0",
        "sej_hub_put_seconds_count 2.0",
        'sej_hub_journal_end_offset{client="a",journal="j"} 10.0',
        'sej_hub_reader_lag_messages{client="a",journal="j",reader="report"} 6.0',
        'sej_hub_journal_damaged{client="a",journal="j"} 0.0',
    ):
        assert line in text.splitlines(), line
    assert 'sej_hub_put_seconds_bucket{le="+Inf"} 2.0' in text
    assert "sej_hub_disk_free_bytes" in text


def test_over_http(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, server):
        port = serve_metrics(server, 0, journals=False)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert b"sej_hub_puts_total 0.0" in answer.read()
