"""A backend of Django's tasks. Each queue is a journal; a task is an item, and its outcome is the item's result.

============  ===========================================  =============================================
status        the item                                     what is known
============  ===========================================  =============================================
READY         waits                                        arguments
RUNNING       is leased                                    also the worker; not when it was started
SUCCESSFUL    is done, its result has the return value     everything, as long as results are kept
FAILED        is done, its result has the exception        everything, as long as results are kept
FAILED        is a dead letter: its workers were killed    arguments and reason
============  ===========================================  =============================================

A task that raises has failed, and does not run again: that is Django's rule. One whose worker was killed runs again.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils.module_loading import import_string

try:
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ModuleNotFoundError:  # before Django 6
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

import sej
from sej.checks import seconds
from sej.contrib.opened import queues_in
from sej.queue.interface.queue import Item, WorkQueue
from sej.queue.interface.values import MAX_RESULT_BYTES, QueuedItem

__all__ = ["SejBackend"]

_KEEP: Final = "7d"
_LEASE_S: Final = 60.0
"""The command extends it while a task runs."""
_TRACEBACK: Final = MAX_RESULT_BYTES // 4
"""The most characters of a traceback that are kept: of its end, and in JSON each may take several bytes."""


class SejBackend(BaseTaskBackend):
    """Keeps tasks in work queues.

    A work queue has seven priorities: 0, and three above it, from 1 to 33, 34 to 66 and 67 to 100, and three below it.

    OPTIONS has ``directory``, where the journals are, and may have ``keep_result``, how long the outcome of a task is
    kept after its end (``"7d"``), and the options of :func:`sej.open_queue`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Read the settings; journals are created at their first use.

        Raises:
            ImproperlyConfigured: no directory is set, or QUEUES is empty.
        """
        super().__init__(alias, params)
        options = dict(self.options)
        directory = options.pop("directory", None)
        if directory is None:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: OPTIONS must have a directory, as in /var/lib/shop/tasks")
        if not self.queues:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: QUEUES must have the names of the queues, got none")
        self._keep_s = seconds("keep_result", options.pop("keep_result", _KEEP))
        self._queues = queues_in(directory, **{"lease_s": _LEASE_S, **options})
        self.worker_id = f"{socket.gethostname()}:{os.getpid()}"[-64:]

    def queue(self, name: str) -> WorkQueue:
        """Return a work queue, opened in this process."""
        return self._queues[name]

    def close(self) -> None:
        """Close the queues; the next use opens them again."""
        self._queues.close()

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a task; it is in the journal when this returns."""
        self.validate_task(task)
        now = time.time()
        row = {"task": task.module_path, "args": normalize_json(args), "kwargs": normalize_json(kwargs)}
        row |= {"at": now, "priority": task.priority}
        delay_s = 0.0
        if task.run_after is not None:
            row["after"] = task.run_after.timestamp()
            delay_s = max(row["after"] - now, 0.0)
        priority = math.copysign(math.ceil(abs(task.priority) * 3 / 100), task.priority)
        value = json.dumps(row).encode()
        number = self.queue(task.queue_name).put(
            value, priority=int(priority), delay_s=delay_s, keep_result=self._keep_s
        )
        found = self._result(f"{task.queue_name}:{int(number)}", json.loads(value), TaskResultStatus.READY)
        task_enqueued.send(type(self), task_result=found)
        return found

    def get_result(self, result_id: str) -> Any:
        """Return what is known of a task.

        Raises:
            TaskResultDoesNotExist: its outcome is not kept any longer, or it was never put.
        """
        name, _, text = result_id.rpartition(":")
        if name not in self.queues or not text.isdecimal():
            raise TaskResultDoesNotExist(result_id)
        queue, number = self.queue(name), int(text)
        while True:
            for state in (None, "dead"):
                for item in queue.items(state, after=number - 1 if number else None, limit=1):
                    if item.offset == number:
                        return self._unfinished(result_id, item)
            try:
                ended = queue.result(number, 0)
                with sej.Scanner(queue.path, offset=number, timeout=0.0) as scanner:
                    row = json.loads(scanner.read(1)[0].value)
            except (TimeoutError, sej.ItemFailedError):
                continue  # it was put back, or ended, between the two looks
            except (sej.ResultGoneError, sej.OffsetBeyondEndError, sej.OffsetTooSmallError) as error:
                raise TaskResultDoesNotExist(result_id) from error
            return self._outcome(result_id, row, json.loads(ended))

    # --- running

    def run(self, queue_name: str, item: Item) -> None:
        """Run the task of an item, and end the item with the outcome. A task that cannot be found is a dead letter."""
        close_old_connections()
        try:
            row, name = json.loads(item.value), f"{queue_name}:{item.message.offset}"
            found = self._result(name, row, TaskResultStatus.RUNNING)
        except (ImportError, ValueError, KeyError, TypeError) as error:
            item.fail(error)
            return
        outcome: dict[str, Any] = {"started": time.time(), "workers": ["unknown"] * (item.attempts - 1)}
        outcome["workers"].append(self.worker_id)
        _set(found, started_at=_time(outcome["started"]), last_attempted_at=_time(outcome["started"]))
        _set(found, worker_ids=outcome["workers"])
        task_started.send(type(self), task_result=found)
        try:
            task = found.task
            context = [TaskContext(task_result=found)] if task.takes_context else []
            outcome["value"] = normalize_json(task.call(*context, *found.args, **found.kwargs))
            data = json.dumps(outcome | {"finished": time.time()}).encode()
            if len(data) > MAX_RESULT_BYTES:
                raise ValueError(
                    f"the return value and its times must have at most {MAX_RESULT_BYTES} bytes as JSON, got"
                    f" {len(data)}: store the value elsewhere, and return its place"
                )
        except (Exception, SystemExit) as error:
            outcome.pop("value", None)
            text = "".join(format_exception(error))[-_TRACEBACK:]
            outcome["error"] = [f"{type(error).__module__}.{type(error).__qualname__}", text]
            # In here, because Django's receiver logs the exception that is being handled.
            self._end(item, found.id, row, json.dumps(outcome | {"finished": time.time()}).encode())
        else:
            self._end(item, found.id, row, data)
        close_old_connections()

    def _end(self, item: Item, result_id: str, row: Mapping[str, Any], data: bytes) -> None:
        ended = self._outcome(result_id, row, json.loads(data))
        item.done(result=data)
        task_finished.send(type(self), task_result=ended)

    # --- what is known

    def _task(self, result_id: str, row: Mapping[str, Any]) -> Any:
        task = import_string(row["task"])
        if not isinstance(task, Task):
            raise TypeError(f"{row['task']} is not a task: decorate it with @task")
        after = row.get("after")
        return task.using(
            priority=row["priority"],
            queue_name=result_id.rpartition(":")[0],
            run_after=None if after is None else _time(after),
            backend=self.alias,
        )

    def _result(self, result_id: str, row: Mapping[str, Any], status: Any, **known: Any) -> Any:
        """Return a result; known: what is known beyond that the task was put."""
        unknown = dict.fromkeys(("started_at", "finished_at", "last_attempted_at"))
        return TaskResult(
            task=self._task(result_id, row),
            id=result_id,
            status=status,
            enqueued_at=_time(row["at"]),
            args=row["args"],
            kwargs=row["kwargs"],
            backend=self.alias,
            **{**unknown, "errors": [], "worker_ids": [], **known},
        )

    def _unfinished(self, result_id: str, item: QueuedItem) -> Any:
        status = {"leased": TaskResultStatus.RUNNING, "dead": TaskResultStatus.FAILED}
        workers = ["unknown"] * item.attempts
        if item.holder is not None and item.attempts:
            workers[-1] = item.holder
        found = self._result(
            result_id, json.loads(item.value), status.get(item.state, TaskResultStatus.READY), worker_ids=workers
        )
        if item.state == "dead":
            path = f"{sej.ItemFailedError.__module__}.{sej.ItemFailedError.__qualname__}"
            found.errors.append(TaskError(exception_class_path=path, traceback=item.traceback or item.reason))
        return found

    def _outcome(self, result_id: str, row: Mapping[str, Any], outcome: Mapping[str, Any]) -> Any:
        error = outcome.get("error")
        status = TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED
        started, finished = _time(outcome["started"]), _time(outcome["finished"])
        times = {"started_at": started, "last_attempted_at": started, "finished_at": finished}
        found = self._result(result_id, row, status, worker_ids=outcome["workers"], **times)
        _set(found, _return_value=outcome.get("value"))
        if error is not None:
            found.errors.append(TaskError(exception_class_path=error[0], traceback=error[1]))
        return found


def _time(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def _set(found: Any, **values: Any) -> None:
    """Set fields of a result, which is frozen for applications."""
    for name, value in values.items():
        object.__setattr__(found, name, value)
