"""Sphinx: Markdown pages, one theme, warnings are errors (see the Makefile)."""

from importlib.metadata import version as installed

project = "SEJ"
copyright = "the SEJ authors"
release = version = installed("sej-journals")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "description"
exclude_patterns = ["_build"]
nitpicky = False

html_theme = "furo"
html_title = f"SEJ {release}"
