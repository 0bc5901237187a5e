"""An application of dramatiq."""

import os
from typing import Any

import dramatiq

from sej.contrib.dramatiq import SejBroker
from tests.contrib.killing import PLACE, work

broker = SejBroker(os.environ.get(PLACE, "/nonexistent"))
dramatiq.set_broker(broker)
actor: Any = dramatiq.actor
send = actor(work, actor_name="send", queue_name="mail")
