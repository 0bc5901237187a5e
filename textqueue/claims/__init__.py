"""Claims on messages, and the drain, which claims messages and moves them into a journal."""
