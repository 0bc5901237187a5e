"""An application of Celery."""

import os
import time
from typing import Any

from celery import Celery

from sej.contrib.kombu import Transport
from tests.contrib.killing import PLACE, work

PATH = os.environ.get(PLACE, "/nonexistent")
app: Any = Celery("shop", broker=f"{Transport.driver_type}://{PATH}/broker", backend=f"file://{PATH}/results")
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    beat_schedule={"tick": {"task": f"{__name__}.send", "schedule": 0.1, "args": ("tick",)}},  # for a worker with -B
)


@app.task(ignore_result=True, shared=False)
def send(name: str) -> None:
    work(name)


@app.task(shared=False)
def now() -> float:
    return time.time()


@app.task(shared=False, rate_limit="1/h")
def rare() -> None:
    pass


@app.task(shared=False)
def add(*numbers: Any) -> Any:
    return sum(sum(number) if isinstance(number, list) else number for number in numbers)
