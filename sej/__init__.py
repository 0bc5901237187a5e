"""SEJ: message queues that are plain files."""
