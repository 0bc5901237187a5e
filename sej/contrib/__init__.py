"""Connections to other libraries, each in a module of its own: :mod:`sej.contrib.logging`."""
