"""The operating system: disk, locks, file watching, shared syncs, checksums, durable positions."""

__all__: list[str] = []
