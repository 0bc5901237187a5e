"""Claims on messages, and the drain into a journal, which claims what it moves."""

__all__: list[str] = []
