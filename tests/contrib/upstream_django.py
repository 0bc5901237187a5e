"""Django's own tests of a backend of tasks, on ours: run by `make upstream`, if its Python has Django 6.

They are written for a backend that keeps tasks in memory, and for one that runs each when it is put.
"""

from importlib import import_module
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final

import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["sej.contrib.django"],
    USE_TZ=True,
)
django.setup()
backend: Any = import_module("sej.contrib.django.backend")
PLACE: Final = TemporaryDirectory()
CHANGES: Final = "changes the result that is kept in memory"
HAS: Final = "wants a refusal of what our backend has"
EXCLUDED: Final = {
    ("DummyBackendTestCase", "test_refresh_result"): CHANGES,
    ("DummyBackendTestCase", "test_refresh_result_async"): CHANGES,
    ("ImmediateBackendTestCase", "test_cannot_get_result"): HAS,
    ("ImmediateBackendTestCase", "test_cannot_refresh_result"): HAS,
    ("ImmediateBackendTestCase", "test_cannot_pass_run_after"): HAS,
}


class DummyBackend(backend.SejBackend):
    """Has what the tests ask of that in memory. We refuse an empty QUEUES, so that it has the names in the tests."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        queues = params.get("QUEUES", ["default"]) or ["default", "unknown_queue", "queue-2"]
        super().__init__(alias, {"QUEUES": queues, "OPTIONS": {"directory": mkdtemp(dir=PLACE.name)}})
        self.options: dict[str, Any] = {}

    def clear(self) -> None:
        for name in self.queues:
            self.queue(name).purge()

    @property
    def results(self) -> list[Any]:
        return [self.get_result(f"default:{item.offset}") for item in self.queue("default").items()]


class ImmediateBackend(DummyBackend):
    """Runs a task when it is put."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        self.run(task.queue_name, self.queue(task.queue_name).get(timeout=0))
        result.refresh()
        return result


for ours in (DummyBackend, ImmediateBackend):
    setattr(import_module(f"django.tasks.backends.{ours.__name__[:-7].lower()}"), ours.__name__, ours)
for module in ("dummy_backend", "immediate_backend", "tasks"):
    found = vars(import_module(f"tasks.test_{module}"))
    globals().update({name: value for name, value in found.items() if name.endswith("TestCase")})
for case, name in EXCLUDED:
    delattr(globals()[case], name)
