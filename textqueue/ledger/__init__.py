"""The files next to a queue file: the lock, the ledger of edits, and the intent of a drain."""
