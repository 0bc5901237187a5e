"""dramatiq's own tests of a broker, on ours: run by `make upstream`.

Most are written for its broker in memory. Left out are those of its command, of other brokers, and of backends.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import dramatiq
import pytest

from sej.contrib.dramatiq import SejBroker

MODULES: Final = "actors callbacks composition encoders generic_actors messages results stub_broker worker"
EXCLUDED: Final = {
    "test_actors_can_be_sent_messages": "reads the queue in memory",
    "test_stub_broker_can_be_flushed": "counts in the queue in memory",
    "test_stub_broker_respects_prefetch": "counts in the queue in memory",
    "test_worker_handles_non_numeric_eta_and_logs_warning": "writes to the queue in memory",
    "test_worker_handles_none_eta": "writes to the queue in memory",
}


class Broker(SejBroker):
    """Raises in `join` what a message failed with, as the broker in memory does, on which many tests rely."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.dead_letters: list[Any] = []
        self.failures: list[Any] = []

    def emit_before(self, signal: str, *arguments: Any, **options: Any) -> None:
        super().emit_before(signal, *arguments, **options)
        if signal == "nack":
            self.dead_letters += arguments
            error = arguments[0]._exception or Exception("failed without an exception")
            self.failures.append((type(error), error.args))  # a test looks for references to the exception

    def join(self, queue_name: str, *, timeout: int | None = None, fail_fast: bool = True) -> None:
        super().join(queue_name, timeout=timeout)
        for kind, values in self.failures if fail_fast else ():
            raise kind(*values)


@pytest.fixture(autouse=True)  # a test that declares an actor without it would meet the actors of another test
def stub_broker(tmp_path: Path) -> Iterator[Any]:
    broker = Broker(tmp_path)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.close()


@contextmanager
def worker(broker: Any, **options: Any) -> Iterator[Any]:
    worker = dramatiq.Worker(broker, **options)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


@pytest.fixture
def stub_worker(stub_broker: Any) -> Iterator[Any]:
    with worker(stub_broker, worker_timeout=100, worker_threads=8) as started:
        yield started


# The archive lacks `conftest.py` and `common.py`, from which the tests import these and what is above.
rate_limiter_backend = pytest.fixture(lambda: import_module("dramatiq.rate_limits.backends").StubBackend())
result_backend = pytest.fixture(lambda: import_module("dramatiq.results.backends").StubBackend())
redis_result_backend = result_backend
skip_on_pypy = pytest.mark.timeout(60)
its: Any = ModuleType("its")
its.__path__ = [os.environ["PYTHONPATH"].rpartition(os.pathsep)[2] + "/tests"]
sys.modules |= {"its": its, "its.common": sys.modules[__name__]}
for module in MODULES.split():
    found = vars(import_module(f"its.test_{module}"))
    globals().update({name: found[name] for name in found if name.startswith(("test_", "pickle_encoder"))})
for name in EXCLUDED:
    del globals()[name]
