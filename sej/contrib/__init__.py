"""Connections to other libraries.

::

    logging          logging.Handler that appends to a journal
    outbox, inbox    messages and effects in the transactions of a database; database: SQLite and PostgreSQL
    huey             a storage of huey; opened: what each process opens for itself
"""
