"""Work queues: the interface, its backends, and the queue on a journal with its log."""

__all__: list[str] = []
