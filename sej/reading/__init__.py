"""Reading a journal: scanners, kept offsets, consumers, their attempts and dead letters."""

__all__: list[str] = []
