"""Reading a journal: scanners, kept offsets, consumers, their attempts and dead letters."""
