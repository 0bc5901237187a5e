"""The numbers of a server, as Prometheus reads them."""

import urllib.request
from pathlib import Path

import pytest
from prometheus_client import generate_latest

import hub
import sej
from hub.wire import Client
from hub.wire.metrics import register, serve_metrics
from tests.hub.support import serving
from tests.sej.support import packed, sample


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
