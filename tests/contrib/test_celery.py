"""Celery on work queues: a real application, its workers under kills, and its commands."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib import reload
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.exceptions import TaskRevokedError

import sej
from tests.contrib import celery_app
from tests.contrib.killing import PLACE, Workers, forkserver, marks
from tests.sej.hooks import until

WORDS = ("celery", "-q", "-A", "tests.contrib.celery_app", "worker", "-l", "CRITICAL", "-c", "2")


MODULES = (
    *("celery.bin.celery", "celery.bin.worker", "celery.apps.worker", "celery.concurrency.prefork"),
    *("celery.backends.filesystem", "sej.contrib.kombu"),
)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv(PLACE, str(tmp_path))
    (tmp_path / "results").mkdir()
    found = reload(celery_app)
    yield found
    found.app.close()


def run_through_kills(app: Any, place: Path, count: int, kills: int) -> None:
    names = {str(number) for number in range(count)}
    for name in names:
        app.send.apply_async((name,), priority=int(name) % 10, countdown=int(name) % 7 == 0)
    ran = Workers(forkserver(*MODULES), place, *WORDS, count=3).run(names, kills)
    assert ran.keys() == names
    with sej.open_queue(place / "broker" / "queues" / "celery", "worker") as queue:
        assert queue.stats().dead == 0


def test_tasks_of_killed_workers_run_again(app: Any, tmp_path: Path) -> None:
    run_through_kills(app, tmp_path, 150, 4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_tasks_of_many_killed_workers_run_again(app: Any, tmp_path: Path) -> None:
    run_through_kills(app, tmp_path, 10_000, 40)


def test_results_chords_revoke_and_inspect(app: Any, tmp_path: Path) -> None:
    workers = Workers(forkserver(*MODULES), tmp_path, *WORDS, count=1)
    try:
        assert app.add.delay(1, 2).get(timeout=60, interval=0.01) == 3
        header = [app.add.s(number, number) for number in range(5)]
        assert chord(header, app.add.s()).delay().get(timeout=60, interval=0.01) == 20
        later = app.add.apply_async((1, 2), countdown=3600)
        inspect = app.app.control.inspect(limit=1, timeout=30)
        until(lambda: any(inspect.scheduled().values()))
        ((task,),) = inspect.scheduled().values()
        assert task["request"]["id"] == later.id
        app.app.control.revoke(later.id)
        until(lambda: later.id in next(iter(inspect.revoked().values())))
        soon = app.add.apply_async((1, 2), countdown=4)
        app.app.control.revoke(soon.id, reply=True, limit=1, timeout=30)
        with pytest.raises(TaskRevokedError):
            soon.get(timeout=60, interval=0.01)
    finally:
        workers.close()


def test_eta_expiry_rate_limit_and_beat(app: Any, tmp_path: Path) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=3)
    late, expired = app.now.apply_async(eta=eta), app.now.apply_async(expires=0.001)
    first, held = app.rare.delay(), app.rare.delay()
    workers = Workers(forkserver(*MODULES), tmp_path, *WORDS, "-B", "-s", str(tmp_path / "schedule"), count=1)
    try:
        with pytest.raises(TaskRevokedError):
            expired.get(timeout=60, interval=0.01)
        assert late.get(timeout=60, interval=0.01) >= eta.timestamp()
        for other in (first, app.add.delay(1, 2)):
            other.get(timeout=60, interval=0.01)
        assert not held.ready()
        until(lambda: marks(tmp_path)["tick"] > 3)
    finally:
        workers.close()
