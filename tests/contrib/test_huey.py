"""huey on work queues: huey's own tests of storages, and workers that are killed."""

import os
import pickle
import sys
import tempfile
from datetime import datetime
from importlib import import_module, reload
from pathlib import Path
from types import ModuleType
from typing import Any

import huey
import pytest

import sej
from sej.contrib.huey import SejHuey
from tests.contrib import huey_app
from tests.contrib.killing import PLACE, Workers, forkserver

os.environ["HUEY_SLOW_TESTS"] = "1"  # read when huey's tests are imported
# The package itself imports the tests of huey's own backend for Django, which configure Django.
package = ModuleType("huey.tests")
package.__path__ = [str(Path(huey.__file__).parent / "tests")]
sys.modules["huey.tests"] = package
BaseTestCase: Any = import_module("huey.tests.base").BaseTestCase
StorageTests: Any = import_module("huey.tests.test_storage").StorageTests


class Stored(BaseTestCase):
    def get_huey(self) -> SejHuey:
        self.folder = tempfile.TemporaryDirectory()
        return SejHuey(utc=False, directory=self.folder.name)

    def tearDown(self) -> None:
        super().tearDown()
        self.huey.storage.close()
        self.folder.cleanup()


class TestStorage(StorageTests, Stored):
    """Of huey 3."""

    supports_ttl = False


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(PLACE, str(tmp_path))
    found = reload(huey_app)
    yield found
    found.huey.storage.close()


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_tasks_of_killed_workers_run_again(app: Any, tmp_path: Path, kind: str) -> None:
    names = {f"{number}" for number in range(150)}
    for name in names:
        app.send(name) if int(name) % 3 else app.send.schedule((name,), delay=0.2)
    words = ("huey.bin.huey_consumer", "tests.contrib.huey_app.huey", "-q", "-w", "2", "-k", kind)
    ran = Workers(forkserver("huey.bin.huey_consumer", "sej.contrib.huey"), tmp_path, *words).run(names, 6)
    assert ran.keys() == names
    while (task := app.huey.dequeue()) is not None:  # its worker was killed after it had run, and before it was done
        app.huey.execute(task)
    assert not app.huey.storage.queue_size()


def test_a_task_that_was_interrupted_runs_again(app: Any) -> None:
    ends = iter([KeyboardInterrupt, None])

    def stop() -> None:
        if (end := next(ends)) is not None:
            raise end

    app.huey.task()(stop)()
    app.huey.execute(app.huey.dequeue())
    assert app.huey.storage.queue_size() == 1
    app.huey.execute(app.huey.dequeue())
    assert app.huey.storage.queue_size() == 0
    assert app.huey.dequeue() is None


def test_a_task_that_huey_cannot_read_becomes_a_dead_letter(app: Any, tmp_path: Path) -> None:
    app.huey.storage.enqueue(b"not a pickle")
    with pytest.raises(pickle.UnpicklingError):
        app.huey.dequeue()
    app.huey.storage.close()
    with sej.open_queue(tmp_path / "mail", "worker") as queue:
        assert [item.value for item in queue.items("dead")] == [b"not a pickle"]


def test_what_was_read_from_the_schedule_is_read_again_if_the_reader_dies(app: Any, tmp_path: Path) -> None:
    storage = app.huey.storage
    storage.add_to_schedule(b"a", datetime(2000, 1, 1))
    storage.add_to_schedule(b"b", datetime(2000, 1, 4))
    assert storage.read_schedule(datetime(2000, 1, 2)) == [b"a"]
    storage.close()  # as the end of the process does
    assert storage.read_schedule(datetime(2001, 1, 1)) == [b"a", b"b"]
    assert storage.read_schedule(datetime(2001, 1, 1)) == []
    storage.close()
    assert storage.read_schedule(datetime(2001, 1, 1)) == []


def test_a_name_that_is_not_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sej.InvalidNameError, match="a queue's name"):
        SejHuey("a/b", directory=str(tmp_path))
