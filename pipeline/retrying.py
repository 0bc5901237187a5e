"""Attempts to reach a hub: repeated with growing waits, until the hub has been out of reach for too long.

The waits grow from a tenth of a second to ten seconds. Each is shortened at random by up to a half, so that the tasks
of a job do not return to a restarted hub at the same moment.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Final

from hub.errors import UnavailableError
from sej.cli.shared.units import human_duration

RETRY_S: Final = 600.0
"""How long a hub may be out of reach for a stream, and the default of Spark's option."""
ANSWER_S: Final = 20.0
"""How long for a call that a person waits for, such as a table: a restart of the hub takes less."""
_FIRST_S: Final = 0.1
_MOST_S: Final = 10.0
_REPORT_S: Final = 10.0
_log = logging.getLogger("pipeline")


class Retry:
    """The attempts of one task or connection.

    Attributes:
        attempts: failed attempts since the hub was last reached.
    """

    def __init__(
        self,
        for_s: float,
        setting: str = "",
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Start before the first attempt.

        Args:
            for_s: how long the hub may be out of reach, in seconds.
            setting: the option that sets this, for messages; empty: none does.
            clock: seconds.
            sleep: waits for seconds.
            chance: returns a number from 0 to 1.
        """
        self.attempts = 0
        self._for_s = for_s
        self._named = f" ({setting})" if setting else ""
        self._clock = clock
        self._sleep = sleep
        self._chance = chance
        self._since: float | None = None
        """When the hub was found out of reach: at the latest at the start of the first failed attempt."""
        self._reported_at = float("-inf")

    def trying(self) -> None:
        """An attempt begins, which may itself take long."""
        if self._since is None:
            self._since = self._clock()

    def reached(self) -> None:
        """The hub has answered: the next failure starts from the beginning."""
        if self.attempts and self._since is not None:
            _log.warning("the hub answers again after %s", human_duration(self._clock() - self._since))
        self.attempts = 0
        self._since = None

    def wait(self, error: UnavailableError) -> None:
        """Wait before the next attempt.

        Raises:
            UnavailableError: the given error, if it cannot heal, or if the time is used up.
        """
        from hub.wire.status import HandshakeError

        now = self._clock()
        if self._since is None:
            self._since = now
        if not self.attempts:
            self._reported_at = float("-inf")
        left = self._since + self._for_s - now
        if left <= 0 or isinstance(error, HandshakeError):
            if self.attempts:
                error.add_note(f"{self.attempts + 1} attempts in {human_duration(now - self._since)}{self._named}")
            raise error
        pause = min(_FIRST_S * 2.0 ** min(self.attempts, 20), _MOST_S) * (1 - self._chance() / 2)
        self.attempts += 1
        if now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            _log.warning(
                "%s; attempt %d failed, trying again for %s%s",
                error,
                self.attempts,
                human_duration(left),
                self._named,
            )
        self._sleep(min(pause, left))
