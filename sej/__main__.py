"""``python -m sej`` is the command ``sej``."""

import sys

from sej.cli import main

sys.exit(main())
