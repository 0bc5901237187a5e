"""Attempts to reach a hub, with a clock that the test moves."""

import logging

import pytest

from hub.errors import UnavailableError
from hub.wire.status import HandshakeError
from pipeline.connection import Remote
from pipeline.options import READ, OptionError, parse
from pipeline.retrying import Retry


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def retry(time: Time, for_s: float = 600.0, chance: float = 0.0) -> Retry:
    return Retry(for_s, clock=lambda: time.now, sleep=time.sleep, chance=lambda: chance)


def test_waits_grow_to_ten_seconds_and_end_with_the_time(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    attempts = retry(time)

    def forever() -> None:
        while True:
            attempts.wait(UnavailableError("down"))

    with caplog.at_level(logging.WARNING), pytest.raises(UnavailableError, match="down") as ended:
        forever()
    assert time.slept[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert set(time.slept[8:-1]) == {10.0}
    assert time.now == 700.0
    assert ended.value.__notes__ == [f"{len(time.slept) + 1} attempts in 10 min (hubRetryFor)"]
    assert caplog.messages[0] == "down; attempt 1 failed, trying again for 10 min (hubRetryFor)"
    assert len(caplog.messages) < len(time.slept)  # one line in ten seconds


def test_waits_are_shortened_at_random() -> None:
    time = Time()
    attempts = retry(time, chance=1.0)
    for _ in range(3):
        attempts.wait(UnavailableError("down"))
    assert time.slept == [0.05, 0.1, 0.2]


def test_a_hub_that_answers_again_starts_the_time_again() -> None:
    time = Time()
    attempts = retry(time, for_s=1.0)
    for _ in range(3):
        attempts.wait(UnavailableError("down"))
    attempts.reached()
    time.now += 1000
    attempts.wait(UnavailableError("down"))
    assert time.slept[-1] == 0.1


def test_what_cannot_heal_is_not_repeated() -> None:
    time = Time()
    with pytest.raises(HandshakeError):
        retry(time).wait(HandshakeError("CERTIFICATE_VERIFY_FAILED"))
    assert time.slept == []


@pytest.mark.parametrize(("given", "seconds"), [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("0", 0.0)])
def test_the_option(given: str, seconds: float) -> None:
    remote = Remote.of(parse(READ, {"hub": "h:1", "hubRetryFor": given}))
    assert remote is not None
    assert remote.retry_s == seconds
    with pytest.raises(OptionError, match="hubRetryFor must be seconds"):
        parse(READ, {"hubRetryFor": "soon"})
