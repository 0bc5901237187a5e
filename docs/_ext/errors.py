"""The directive ``sej-errors``: the class docstring of each error that it names, one in a line."""

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

OPTIONS = ["   :class-doc-from: class", "   :no-inherited-members:"]


class Errors(SphinxDirective):
    """An autoexception for each name, without what it inherits."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Document the errors."""
        lines = ["```{eval-rst}"]
        for name in self.content:
            lines += [f".. autoexception:: {name}", *OPTIONS]
        found = nodes.container()
        self.state.nested_parse(StringList([*lines, "```"], "errors"), 0, found)
        return found.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("sej-errors", Errors)
    return {"parallel_read_safe": True}
