"""``manage.py sej_worker``: run tasks until SIGTERM or an interrupt; tasks that run are finished first."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError

try:
    from django.tasks import task_backends
except ModuleNotFoundError:  # before Django 6
    from django_tasks import task_backends

import sej
from sej.contrib.django.backend import SejBackend


class Command(BaseCommand):
    """The command."""

    help = "Run tasks of queues, until SIGTERM or an interrupt."

    def add_arguments(self, parser: Any) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="The alias in TASKS; default: default.")
        parser.add_argument("--queue", action="append", help="A queue; may be repeated; default: all of the backend.")
        parser.add_argument("--threads", type=int, default=1, help="How many tasks of each queue run concurrently.")
        parser.add_argument("--until-empty", action="store_true", help="End when no task is left.")

    def handle(self, *_: Any, **given: Any) -> None:
        """Run."""
        backend = task_backends[given["backend"]]
        if not isinstance(backend, SejBackend):
            raise CommandError(f"--backend {given['backend']}: expected a SejBackend, got a {type(backend).__name__}")
        names = given["queue"] or sorted(backend.queues)
        if unknown := set(names) - backend.queues:
            raise CommandError(f"--queue {unknown.pop()}: the backend has {', '.join(sorted(backend.queues))}")
        stop, failures = threading.Event(), list[BaseException]()

        def run(name: str) -> None:
            try:
                handler = partial(backend.run, name)
                sej.work(backend.queue(name), handler, given["threads"], until_empty=given["until_empty"], stop=stop)
            except BaseException as error:
                failures.append(error)
                stop.set()

        others = [threading.Thread(target=run, args=(name,), name=f"sej-{name}") for name in names[1:]]
        for thread in others:
            thread.start()
        run(names[0])  # in this thread: a signal reaches it
        for thread in others:
            thread.join()
        backend.close()
        for failure in failures:
            raise failure
