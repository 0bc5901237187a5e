"""The directive ``sej-commands``: every command of `sej`, as its own help tells of it."""

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from sej.cli.app import app as sej

WIDTH = 96
HELP = ["-h", "--help"]


def contributed() -> dict[str, Any]:
    """The commands that packages bring, as click or typer has them."""
    from typer.main import get_command

    found = {}
    for point in entry_points(group="sej.commands"):
        value = getattr(import_module(point.module), point.attr)
        found[point.name] = value if hasattr(value, "get_help") else get_command(value)
    return found


def helps(command: Any, name: str, parent: Any, context: Any) -> Iterator[tuple[str, str]]:
    """(words, help) of a command and of all below it."""
    own = context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)
    yield own.command_path, command.get_help(own)
    if hasattr(command, "list_commands"):
        for below in command.list_commands(own):
            yield from helps(command.get_command(own, below), below, own, context)


class Commands(SphinxDirective):
    """A section for each subcommand of `sej`, with its help and that of what is below it."""

    def run(self) -> list[nodes.Node]:
        """Make the sections."""
        top = click.Context(sej, info_name="sej")
        brought = contributed()
        sections: list[nodes.Node] = []
        for name in sej.list_commands(top):
            command: Any = brought.get(name) or sej.get_command(top, name)
            # typer brings a click of its own, whose contexts its commands want.
            context = type(command.make_context(name, [], resilient_parsing=True, help_option_names=HELP))
            section = nodes.section(ids=[f"sej-{name}"])
            section += nodes.title(text=f"sej {name}")
            for words, text in helps(command, f"sej {name}", None, context):
                if words != f"sej {name}":
                    section += nodes.rubric(text=words)
                section += nodes.literal_block(text, text, language="none")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("sej-commands", Commands)
    return {"parallel_read_safe": True}
