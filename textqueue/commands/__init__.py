"""``sej tq``: text queues from a shell. The topics are modules; ``textqueue.commands.group`` joins them."""

from textqueue.commands.group import app

__all__ = ["app"]
