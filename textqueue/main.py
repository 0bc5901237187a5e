"""The module of the published package that defines its names, for scripts that import them from it."""

from __future__ import annotations

from textqueue.editing.message import Message as QueueItem
from textqueue.format.parser import MessageStatus
from textqueue.queue import TextQueue

__all__ = ["MessageStatus", "QueueItem", "TextQueue"]
