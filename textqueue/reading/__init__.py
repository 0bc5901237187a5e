"""Reading: which files make up a queue, which message is next, waiting for more, and what ``check`` finds."""

__all__: list[str] = []
