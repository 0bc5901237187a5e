"""The application that has the command."""

from django.apps import AppConfig


class SejConfig(AppConfig):
    """Its label is ``sej``."""

    name = "sej.contrib.django"
    label = "sej"
