"""What touches the operating system: the disk, locks, watching, shared syncs, checksums, kept positions."""

__all__: list[str] = []
