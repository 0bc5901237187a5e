"""Django's tasks on work queues: a backend, and the command ``sej_worker``.

With Django 6 it is a backend of ``django.tasks``, with older versions of the package ``django-tasks``::

    INSTALLED_APPS = [..., "sej.contrib.django"]
    TASKS = {
        "default": {
            "BACKEND": "sej.contrib.django.backend.SejBackend",
            "OPTIONS": {"directory": "/var/lib/shop/tasks"},
        }
    }

The modules::

    backend                            SejBackend, which puts tasks, returns results and runs a task
    management.commands.sej_worker     runs tasks until it is stopped
"""
