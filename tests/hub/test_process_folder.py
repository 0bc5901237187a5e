"""The folder of a hub's processes: it is removed when they have ended, however that was, and not before."""

import os
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from hub import process_folder
from hub.process_folder import made, remove, using
from sej.system.disk import Mode, OsDisk, OsFile


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    return tmp_path


def left(place: Path) -> Path:
    """What processes leave that are killed."""
    with made() as folder:
        os.mkdir(os.path.join(folder, "counts"))
        os.rename(folder, place / "kept")
    (place / "kept").rename(folder)
    return Path(folder)


def test_it_is_removed_at_the_end(place: Path) -> None:
    with made() as folder:
        assert os.stat(folder).st_mode & 0o777 == 0o700
        assert os.listdir(place) == [os.path.basename(folder)]
    assert os.listdir(place) == []


def test_the_next_one_removes_those_that_were_left(place: Path) -> None:
    left(place)
    (place / "sejhub-empty").mkdir()
    (place / "sejhub-file").touch()
    (place / "sejhub-link").symlink_to(left(place))
    with made() as folder:
        assert sorted(os.listdir(place)) == sorted([os.path.basename(folder), "sejhub-file", "sejhub-link"])


def test_one_in_use_stays(place: Path) -> None:
    folder = left(place)
    with using(os.fspath(folder)), made() as other:
        remove(other)
        assert sorted(os.listdir(place)) == sorted([folder.name, os.path.basename(other)])
    assert os.listdir(place) == [folder.name]
    remove(os.fspath(folder))
    assert os.listdir(place) == []


def test_the_last_one_waits_for_a_process_that_is_ending(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipe of a killed supervisor ends before its lock."""
    folder, ending = left(place), ExitStack()
    monkeypatch.setattr(time, "sleep", lambda _: ending.close())
    with ending:
        ending.enter_context(using(os.fspath(folder)))
        remove(os.fspath(folder), wait=True)
    assert os.listdir(place) == []


def test_it_waits_a_second_at_most_for_a_process_that_does_not_end(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that is stopped. The next hub removes the folder."""
    folder, waits = left(place), list[float]()
    monkeypatch.setattr(time, "sleep", waits.append)
    with using(os.fspath(folder)):
        remover = threading.Thread(target=remove, args=(os.fspath(folder),), kwargs={"wait": True}, daemon=True)
        remover.start()
        remover.join(20)
        assert not remover.is_alive()
        assert os.listdir(place) == [folder.name]
    assert sum(waits) == pytest.approx(1)
    with made() as other:
        assert os.listdir(place) == [os.path.basename(other)]


@pytest.mark.parametrize("meanwhile", ["before the lock file is created", "before it is locked"])
def test_one_that_is_removed_too_early_is_made_again(
    place: Path, meanwhile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    class Disk(OsDisk):
        def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
            if mode != "append":
                return super().open(path, mode)
            opened.append(os.path.dirname(path))
            if len(opened) == 1 and meanwhile == "before the lock file is created":
                remove(opened[0])
            file = super().open(path, mode)
            if len(opened) == 1:
                remove(opened[0])
            return file

    monkeypatch.setattr(process_folder, "OS", Disk())
    with made() as folder:
        assert opened[1:] == [folder] != opened[:1]
        assert os.listdir(place) == [os.path.basename(folder)]
