"""What is kept next to a queue file: the lock, the ledger of our edits, and what is on its way into a journal."""

__all__: list[str] = []
