"""Claims on messages, and the drain, which claims messages and moves them into a journal."""

__all__: list[str] = []
