"""The examples for FastAPI and Litestar under uvicorn: requests are cancelled, callers leave, the server is killed."""

import contextlib
import http.client
import itertools
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.harness import ROOT
from tests.sej.hooks import until
from tests.sej.support import read_all


class Service:
    """A server in a process of its own, always on the same port."""

    def __init__(self, name: str, folder: Path, port: int) -> None:
        options = ["--log-level", "critical", "--port", str(port)]
        self._words = [sys.executable, "-m", "uvicorn", *options, "tests.contrib.web_app:app"]
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "SEJ_TEST_WEB": name}
        self._folder = folder
        self.port = port
        self.start(1)

    def start(self, seed: int) -> None:
        env = {**self._env, "SEJ_TEST_SEED": str(seed)}
        self._process = subprocess.Popen(self._words, cwd=self._folder, env=env)
        until(lambda: self.ask("GET", "/nothing") in (404, 503))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, method: str, path: str, body: str | None = None, *, leave: bool = False) -> int:
        """Send a request and return the status; 0 if there is none, or if the caller leaves before."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as made:
            try:
                made.request(method, path, body)
                return 0 if leave else made.getresponse().status
            except (OSError, http.client.HTTPException):
                return 0

    def events(self, start: int, count: int) -> list[tuple[int, str]]:
        """Return the next events until `end`, fewer if the stream is cut before."""
        found: list[tuple[int, str]] = []
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as made:
            try:
                made.request("GET", "/orders/events", headers={"last-event-id": str(start)})
                answer = made.getresponse()
                offset = start
                while answer.status == 200 and (line := answer.readline().decode()):
                    if line.startswith("id: "):
                        offset = int(line[4:])
                    elif line.startswith("data: ") and line.endswith("\n"):
                        found.append((offset, json.loads(line[6:])))
                        if len(found) == count or found[-1][1] == "end":
                            break
            except (OSError, http.client.HTTPException):
                pass
        return found


@pytest.mark.parametrize("name", ["fastapi_orders", "litestar_orders"])
def test_what_was_acknowledged_is_there_once_and_streams_skip_nothing(name: str, tmp_path: Path, port: int) -> None:
    service = Service(name, tmp_path, port)
    stored: list[str] = []
    count, producers = 30, 3
    streams: list[list[str]] = [[] for _ in range(6)]

    def produce(producer: int) -> None:
        dice = random.Random(producer)
        for number in range(count):
            for attempt in itertools.count():
                value = f"{producer} {number} {attempt}"
                if service.ask("POST", "/orders", value, leave=dice.random() < 0.2) == 201:
                    stored.append(value)
                    break

    def follow(values: list[str], seed: int) -> None:
        dice, offset = random.Random(seed), 0
        while "end" not in values:
            found = service.events(offset, dice.randrange(1, 30))
            values += [value for _, value in found]
            offset = found[-1][0] if found else offset

    makers = [threading.Thread(target=produce, args=(number,)) for number in range(producers)]
    readers = [threading.Thread(target=follow, args=(values, seed)) for seed, values in enumerate(streams)]
    try:
        for thread in makers + readers:
            thread.start()
        until(lambda: len(stored) > 40)
        service.kill()
        service.start(2)
        for thread in makers:
            thread.join()
        while service.ask("POST", "/orders", "end") != 201:
            pass
        for thread in readers:
            thread.join()
    finally:
        service.kill()
    values = [message.value.decode() for message in read_all(tmp_path / "orders")]
    assert len(stored) == count * producers
    assert not {value: times for value, times in Counter(values).items() if times > 1 and value != "end"}
    assert set(stored) <= set(values)
    first_end = values.index("end") + 1
    for found in streams:
        assert found[:first_end] == values[:first_end]
