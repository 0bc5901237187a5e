"""Connections to other libraries.

::

    logging          logging.Handler that appends to a journal
    outbox, inbox    messages and effects in the transactions of a database; database: SQLite and PostgreSQL
    django           a backend of Django's tasks, and the command that runs them
    opentelemetry    exporters of OpenTelemetry; forward: sends their journal to a collector
    kombu            a transport of kombu, and so of Celery
    dramatiq         a broker of dramatiq
    huey             a storage of huey; opened: what each process opens for itself
"""
