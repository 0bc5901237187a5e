"""Reading: the files of a queue, the next message, waiting for new messages, and ``check``."""
