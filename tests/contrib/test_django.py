"""Django's tasks on work queues: what the backend promises, the command, and workers that are killed."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings
from django.utils import timezone
from django_tasks import TaskResultStatus, task_backends
from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist, TaskResultMismatch
from django_tasks.signals import task_enqueued, task_finished, task_started

import sej
from sej.contrib.django.backend import SejBackend
from tests.contrib import django_app
from tests.contrib.killing import PLACE, Workers, forkserver
from tests.sej.hooks import until

app: Any = django_app
MODULES = ("django.core.management", "sej.contrib.django.backend")
READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SejBackend]:
    with configured(tmp_path) as found:
        yield found


@contextmanager
def configured(place: Path, **options: object) -> Iterator[SejBackend]:
    options = {"directory": str(place), **options}
    default = {"BACKEND": django_app.BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}
    other = {"BACKEND": "django_tasks.backends.immediate.ImmediateBackend"}
    with override_settings(TASKS={"default": default, "other": other}):
        found = task_backends["default"]
        assert isinstance(found, SejBackend)
        yield found
        found.close()


def run(**options: object) -> None:
    call_command("sej_worker", until_empty=True, **options)


def test_a_task_and_its_result(backend: SejBackend) -> None:
    seen: list[tuple[str, Any]] = []
    receivers = {}
    for name, sent in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):
        receivers[name] = lambda task_result, name=name, **_: seen.append((name, task_result.status))
        sent.connect(receivers[name])
    result = app.add.enqueue(1, b=2)
    assert (result.id, result.status, result.args, result.kwargs) == ("default:0", READY, [1], {"b": 2})
    assert (result.task, result.backend, result.attempts) == (app.add, "default", 0)
    with pytest.raises(ValueError, match="not finished"):
        assert result.return_value
    run()
    result.refresh()
    assert (result.status, result.return_value, result.worker_ids) == (SUCCESSFUL, 3, [backend.worker_id])
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at <= timezone.now()
    again = app.add.get_result(result.id)
    assert (again, again.args) == (result, [1])
    assert seen == [("enqueued", READY), ("started", RUNNING), ("finished", SUCCESSFUL)]


@pytest.mark.parametrize(("task", "kind"), [(app.fail, ValueError), (app.leave, SystemExit)])
def test_a_task_that_raises_has_failed(
    backend: SejBackend, caplog: pytest.LogCaptureFixture, task: Any, kind: type[BaseException]
) -> None:
    result = task.enqueue("no such flight")
    run()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (FAILED, True, 1)
    assert result.errors[0].exception_class is kind
    assert result.errors[0].traceback.endswith(f"{kind.__name__}: no such flight\n")
    assert f"{kind.__name__}: no such flight" in caplog.text
    with pytest.raises(ValueError, match="Task failed"):
        assert result.return_value


def test_arguments_and_return_values_become_json_as_with_other_backends(backend: SejBackend) -> None:
    value = MappingProxyType({"bytes": b"a", "numbers": range(2)})
    with pytest.raises(TypeError, match="Unsupported type"):
        app.later.enqueue(timezone.now())
    results = app.later.enqueue(value), app.later.enqueue(name=value), app.mapping.enqueue()
    run()
    for result in results:
        assert backend.get_result(result.id).return_value == {"bytes": "a", "numbers": [0, 1]}


def test_context_coroutines_and_queues(backend: SejBackend) -> None:
    told, late = app.tell.using(queue_name="mail").enqueue("alice"), app.later.enqueue("bob")
    run(queue=["default"])
    assert [backend.get_result(each.id).status for each in (told, late)] == [READY, SUCCESSFUL]
    run(threads=2)
    assert backend.get_result(told.id).return_value == ["alice", 1, "mail:0"]
    assert backend.get_result(late.id).return_value == "bob"


def test_priority_and_run_after(backend: SejBackend) -> None:
    for number, priority in enumerate((0, -100, 100, 1, 50, -1)):
        app.tell.using(priority=priority).enqueue(str(number))
    app.tell.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("late")
    (waiting,) = backend.queue("default").items("delayed")
    assert json.loads(waiting.value)["args"] == ["late"]
    backend.queue("default").cancel(waiting.offset)
    ready = [json.loads(item.value)["priority"] for item in backend.queue("default").peek(10)]
    assert ready == [100, 50, 1, 0, -1, -100]
    soon = app.tell.using(run_after=timezone.now() + timedelta(seconds=0.3)).enqueue("soon")
    run()
    assert backend.get_result(soon.id).started_at >= soon.task.run_after


def test_a_running_task_and_one_whose_workers_were_killed(tmp_path: Path) -> None:
    with configured(tmp_path, max_attempts=1) as backend:
        result = app.add.enqueue(1, 2)
        item = backend.queue("default").get(timeout=0)
        result.refresh()
        assert item is not None
        assert (result.status, result.attempts, result.started_at) == (RUNNING, 1, None)
        item.fail("killed")
        result.refresh()
        assert (result.status, result.errors[0].traceback) == (FAILED, "killed")
        assert result.errors[0].exception_class is sej.ItemFailedError


def test_a_task_that_is_not_there_is_a_dead_letter(backend: SejBackend) -> None:
    row = {"task": "tests.contrib.django_app.gone", "args": [], "kwargs": {}, "at": 0.0, "priority": 0}
    for value in (json.dumps(row), json.dumps(row | {"task": "os.path.join"}), "no JSON"):
        backend.queue("default").put(value.encode())
    run()
    dead = backend.queue("default").items("dead")
    assert [item.reason.partition(":")[0] for item in dead] == ["ImportError", "TypeError", "JSONDecodeError"]


def test_a_return_value_that_is_too_large_fails_with_the_way_out(backend: SejBackend) -> None:
    result = app.large.enqueue()
    run()
    result.refresh()
    assert result.status == FAILED
    assert "store the value elsewhere, and return its place" in result.errors[0].traceback


def test_what_is_refused(backend: SejBackend, tmp_path: Path) -> None:
    for wrong in ({"queue_name": "other"}, {"priority": 101}, {"run_after": timezone.now().replace(tzinfo=None)}):
        with pytest.raises(InvalidTaskError):
            app.add.using(**wrong)
    with pytest.raises(TypeError):
        app.add.enqueue(object(), 1)
    for missing in ("default:0", "default:17", "default:x", "other:0", "default"):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(missing)
    with pytest.raises(TaskResultMismatch):
        app.fail.get_result(app.add.enqueue(1, 2).id)
    with pytest.raises(CommandError, match="the backend has default, mail"):
        run(queue=["other"])
    with pytest.raises(CommandError, match="expected a SejBackend, got a"):
        run(backend="other")
    with pytest.raises(ImproperlyConfigured, match="OPTIONS must have a directory"):
        SejBackend("default", {})
    with pytest.raises(ImproperlyConfigured, match="QUEUES must have the names of the queues, got none"):
        SejBackend("default", {"QUEUES": [], "OPTIONS": {"directory": str(tmp_path)}})


def test_a_result_is_gone_after_its_time(tmp_path: Path) -> None:
    with configured(tmp_path, keep_result=0.01) as backend:
        result = app.add.enqueue(1, 2)
        run()

        def gone() -> bool:
            app.add.enqueue(1, 2)
            run()
            try:
                result.refresh()
            except TaskResultDoesNotExist:
                return True
            return False

        until(gone)
        assert backend.queue("default").stats().dead == 0


def test_tasks_of_killed_workers_run_again(
    backend: SejBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path))  # what the workers leave runs in this process
    results = {str(number): app.burn.enqueue(str(number)) for number in range(150)}
    ran = Workers(forkserver(*MODULES), tmp_path, "tests.contrib.django_app", "sej_worker", "--threads", "2").run(
        set(results), 6
    )
    assert ran.keys() == results.keys()
    run()
    assert {backend.get_result(result.id).status for result in results.values()} == {SUCCESSFUL}


def test_sigterm_finishes_what_runs(backend: SejBackend, tmp_path: Path) -> None:
    with forkserver(*MODULES).pipe(["tests.contrib.django_app", "sej_worker"], env={PLACE: str(tmp_path)}) as worker:
        result = app.add.enqueue(1, 2)
        until(lambda: bool(backend.get_result(result.id).is_finished))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
