"""The directive ``sej-commands``: every command of `sej` with the text of its `--help`."""

from collections.abc import Iterator

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from sej.cli.app import app as sej

WIDTH = 96


def below(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """The subcommands of a group, by name."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield name, found


def helps(command: click.Command, name: str, parent: click.Context) -> Iterator[tuple[str, str]]:
    """Yield (words, help) of a command and of all its subcommands."""
    own = click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH)
    yield own.command_path, command.get_help(own)
    for inner, found in below(command, own):
        yield from helps(found, inner, own)


class Commands(SphinxDirective):
    """A section for each subcommand of `sej`, with its help and the help of its own subcommands."""

    def run(self) -> list[nodes.Node]:
        """Make the sections."""
        top = click.Context(sej, info_name="sej", help_option_names=["-h", "--help"])
        sections: list[nodes.Node] = []
        for name, command in below(sej, top):
            section = nodes.section(ids=[f"sej-{name}"])
            section += nodes.title(text=f"sej {name}")
            for words, text in helps(command, name, top):
                if words != f"sej {name}":
                    section += nodes.rubric(text=words)
                section += nodes.literal_block(text, text, language="none")
            sections.append(section)
        return sections


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("sej-commands", Commands)
    return {"parallel_read_safe": True}
