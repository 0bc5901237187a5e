"""kombu's own tests of a transport, on ours: run by `make upstream`.

Left out is what our transport does not have, as most others: messages that expire at the broker (BaseTimeToLive), the
event loop of kombu (BaseEventLoop), and a second broker (BaseFailover).
"""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection

from sej.contrib.kombu import Transport

common: Any = import_module("t.integration.common")


class Draining(Connection):
    """Delivers all messages of a moment in one call, on which kombu's tests of priorities rely."""

    def drain_events(self, **options: Any) -> None:
        super().drain_events(**options)
        with suppress(TimeoutError):
            while True:
                super().drain_events(timeout=0.01)


@pytest.fixture
def connection(tmp_path: Path) -> Any:
    return Draining(f"{Transport.driver_type}://{tmp_path}/broker")


@pytest.fixture
def invalid_connection(tmp_path: Path) -> Any:
    (tmp_path / "file").touch()
    return Connection(f"{Transport.driver_type}://{tmp_path}/file")


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass
