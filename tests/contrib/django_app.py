"""An application of Django with tasks, and its ``manage.py``: ``python -m tests.contrib.django_app COMMAND``."""

import os
import sys
from types import MappingProxyType
from typing import Any

import django
from django.conf import settings
from django_tasks import task

from tests.contrib.killing import PLACE, work

BACKEND = "sej.contrib.django.backend.SejBackend"
OPTIONS = {"directory": os.environ.get(PLACE, "/nonexistent")}
if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["django_tasks", "sej.contrib.django"],
        TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": OPTIONS}},
        USE_TZ=True,
    )
    django.setup()


@task
def add(a: int, b: int) -> int:
    return a + b


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
def leave(text: str) -> None:
    raise SystemExit(text)


@task(takes_context=True)
def tell(context: Any, name: str) -> list[Any]:
    return [name, context.attempt, context.task_result.id]


@task
async def later(name: str) -> str:
    return name


@task
def mapping() -> Any:
    return MappingProxyType({"bytes": b"a", "numbers": range(2)})


@task
def large() -> str:
    return "x" * 20_000


@task
def burn(name: str) -> None:
    work(name)


if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", *sys.argv[1:]])
