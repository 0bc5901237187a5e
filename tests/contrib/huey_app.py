"""An application of huey."""

import os

from sej.contrib.huey import SejHuey
from tests.contrib.killing import PLACE, work

huey = SejHuey("mail", directory=os.environ.get(PLACE, "/nonexistent"))


send = huey.task(retries=1, name="send")(work)
