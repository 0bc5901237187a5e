"""Attempts to reach a hub, with a clock that the test moves."""

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

import pipeline
from hub.errors import UnavailableError
from hub.wire.status import HandshakeError
from pipeline import cli, connection
from pipeline.connection import Remote, Retry
from pipeline.options import READ, WRITE, OptionError, parse


class Time:
    """Takes the place of the module in ``pipeline.connection``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def retry(for_s: float = 600.0, setting: str = "hubRetryFor") -> Retry:
    return Retry(for_s, setting)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(connection, "time", found)
    return found


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", max)


def never_reached(attempts: Retry) -> None:
    while True:
        attempts.wait(UnavailableError("down"))


def test_waits_grow_to_ten_seconds_and_end_with_the_time(time: Time, caplog: pytest.LogCaptureFixture) -> None:
    attempts = retry()

    with caplog.at_level(logging.WARNING), pytest.raises(UnavailableError, match="down") as ended:
        never_reached(attempts)
    assert time.slept[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert set(time.slept[8:-1]) == {10.0}
    assert time.now == 700.0
    assert ended.value.__notes__ == [f"{len(time.slept) + 1} attempts in 10 min (hubRetryFor)"]
    assert caplog.messages[0] == "down; attempt 1 failed, trying again for 10 min (hubRetryFor)"
    assert len(caplog.messages) < len(time.slept)  # one line in ten seconds


def test_a_hub_that_answers_again_starts_the_time_again(time: Time) -> None:
    attempts = retry(for_s=1.0)
    for _ in range(3):
        attempts.wait(UnavailableError("down"))
    attempts.reached()
    time.now += 1000
    attempts.wait(UnavailableError("down"))
    assert time.slept[-1] == 0.1


def test_what_cannot_heal_is_not_repeated(time: Time) -> None:
    with pytest.raises(HandshakeError):
        retry().wait(HandshakeError("CERTIFICATE_VERIFY_FAILED"))
    assert time.slept == []


def test_a_relative_address_means_the_directory_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for remote in (Remote.named("h:1,unix:hub.sock", None, None), Remote.of(parse(READ, {"hub": "h:1,unix:hub.sock"}))):
        assert remote is not None
        assert remote.addresses == ("h:1", f"unix:{tmp_path}/hub.sock")


@pytest.mark.parametrize("given", ["localhost", "h:1,localhost", "h:99999"])
def test_an_address_without_a_port_is_an_error_before_a_connection(given: str) -> None:
    """The rule is that of ``hub.wire.Client``: gRPC would try port 443, for ten minutes with a stream."""
    wrong = "is not the address of a hub; expected host:port"
    with pytest.raises(OptionError, match=wrong):
        pipeline.table("berlin", hub=given)
    with pytest.raises(OptionError, match=wrong):
        pipeline.count("berlin", hub=given.split(","))
    for options in (READ, WRITE):
        with pytest.raises(OptionError, match=wrong):
            Remote.of(parse(options, {"hub": given}))
    done = CliRunner().invoke(cli.app, ["count", "--hub", given, "berlin"])
    assert done.exit_code == 2
    assert wrong in done.output


@pytest.mark.parametrize(("given", "seconds"), [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("0", 0.0)])
def test_the_option(given: str, seconds: float) -> None:
    remote = Remote.of(parse(READ, {"hub": "h:1", "hubRetryFor": given}))
    assert remote is not None
    assert (remote.retry_s, remote.retry_setting) == (seconds, "hubRetryFor")
    with pytest.raises(OptionError, match="hubRetryFor must be seconds"):
        parse(READ, {"hubRetryFor": "soon"})
