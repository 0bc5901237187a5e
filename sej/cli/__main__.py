"""``python -m sej.cli`` is the command ``sej``."""

import sys

from sej.cli import main

sys.exit(main())
