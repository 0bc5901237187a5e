"""The directive ``sej-options``: a table of options of the Spark formats, from pipeline/options.py and its comments."""

import ast
import inspect
from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from pipeline import options

_SOURCE = inspect.getsource(options)
_LINES = _SOURCE.splitlines()
_TABLES = {
    node.target.id: node.value.elts
    for node in ast.parse(_SOURCE).body
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Tuple)
}


def comments(table: str) -> Iterator[tuple[str, str]]:
    """Yield name and comment of each option of a table, in its order."""
    for element in _TABLES[table]:
        if isinstance(element, ast.Starred) and isinstance(element.value, ast.Name):
            yield from comments(element.value.id)
        elif isinstance(element, ast.Call) and isinstance(element.args[0], ast.Constant):
            first = last = element.lineno - 1
            while _LINES[first - 1].lstrip().startswith("#"):
                first -= 1
            yield str(element.args[0].value), " ".join(line.lstrip(" #") for line in _LINES[first:last])


def rows(table: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, what is expected, default, meaning, and the name in Spark's Kafka source."""
    for option, (name, comment) in zip(getattr(options, table), comments(table), strict=True):
        assert option.name == name
        meaning, _, kafka = comment.partition(" Kafka: ")
        default = "–" if option.default in (None, ()) else str(option.default).lower()
        yield name, option.kind.expected, default, meaning.removesuffix("."), f"`{kafka}`" if kafka else "–"


class Options(SphinxDirective):
    """The table whose name is the argument."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        lines = ["| option | takes | default | what it does | in the Kafka source |", "|---|---|---|---|---|"]
        lines += [f"| `{name}` | {' | '.join(cells)} |" for name, *cells in rows(self.arguments[0])]
        found = nodes.container()
        self.state.nested_parse(StringList(lines, "pipeline/options.py"), 0, found)
        return found.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.add_directive("sej-options", Options)
    return {"parallel_read_safe": True}
