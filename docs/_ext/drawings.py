"""Put each SVG of `docs/images` into the page itself, so that it follows the light or dark theme that the reader chose.

An SVG that is loaded as an image sees only the setting of the system. On the pages of a repository, which show it as an
image, the style inside the file applies. Here it is removed, and `_static/site.css` has the colours.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx


def inline(app: Sphinx, tree: nodes.document, page: str) -> None:
    """Replace the drawings of one page, if the output is HTML."""
    if app.builder.format != "html":
        return
    for image in list(tree.findall(nodes.image)):
        if image["uri"].startswith("images/") and image["uri"].endswith(".svg"):
            text = (Path(app.srcdir) / image["uri"]).read_text()
            drawing = re.sub(r"<style>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
            image.replace_self(nodes.raw("", f'<div class="drawing">{drawing}</div>', format="html"))


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", inline)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
