"""Sphinx: Markdown pages and the reference from the docstrings, one theme, warnings are errors (see the Makefile)."""

import gc
import os
import sys
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from types import MemberDescriptorType

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment

import sej

gc.disable()  # a fifth of the time of a build, which ends soon anyway

project = "SEJ"
copyright = "the SEJ authors"
release = version = sej.__version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
    "commands",
    "drawings",
    "errors",
    "spark_options",
]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_ext", "_templates"]
templates_path = ["_templates"]

autoclass_content = "both"
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # Members that a public class inherits from a private one are public. Members of these classes are Python's own.
    "inherited-members": "BaseException,Enum,NamedTuple,StreamingQueryListener,int,tuple",
}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
nitpicky = True
# Names of other projects cannot be resolved here. Annotations name types that are not part of the reference.
nitpick_ignore_regex = [("py:.*", r"(?!(sej|shard|hub|textqueue|kestrel|pipeline)\.).*"), ("py:class", ".*")]

highlight_language = "none"  # a block of code names its language; others are plain text
html_theme = "furo"
html_title = f"SEJ {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
LIGHT = {"drawing-main": "#ddf4ff", "drawing-good": "#dafbe1", "drawing-bad": "#ffebe9"}
DARK = {"drawing-main": "#12253b", "drawing-good": "#12261e", "drawing-bad": "#301b1f"}
html_theme_options = {"light_css_variables": LIGHT, "dark_css_variables": DARK}
# "Edit this page" needs the address of the repository: that of the environment, or `Source` of [project.urls].
URLS = dict(line.split(", ", 1) for line in metadata("sej-journals").get_all("Project-URL") or ())
if repository := os.environ.get("SEJ_DOCS_REPOSITORY") or URLS.get("Source"):
    html_theme_options |= {"source_repository": repository, "source_branch": "main", "source_directory": "docs/"}

PACKAGES = ["sej", "shard", "hub", "textqueue", "kestrel", "kestrel.segmented", "hub.wire", "pipeline"]


def _public_names() -> dict[str, str]:
    """Map the place where a name is defined to its public name: `sej.writing.writer.Writer` to `sej.Writer`."""
    found = {}
    for package in PACKAGES:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            home, private = getattr(value, "__module__", package), getattr(value, "__qualname__", name)
            found[f"{home}.{private}"] = f"{package}.{name}"
    return found


def _follow(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """Resolve a reference to a name in its own module to the public name."""
    target = node.get("reftarget", "")
    for private, public in app.config.public_names.items():
        if target == private or target.startswith(f"{private}."):
            name = public + target.removeprefix(private)
            return env.get_domain("py").resolve_xref(
                env, node["refdoc"], app.builder, node["reftype"], name, node, text
            )
    return None


def _skip(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """Leave out the fields of a named tuple: its class documents them."""
    field = isinstance(value, MemberDescriptorType) and issubclass(value.__objclass__, tuple)  # of sej.Message
    return True if field or type(value).__name__ == "_tuplegetter" else None


def _sign(
    app: Sphinx, what: str, name: str, value: type, options: object, signature: str, returns: str
) -> tuple[str, str] | None:
    """Leave out the arguments of classes that only the library creates."""
    made = what == "class" and (value.__init__.__doc__ or "").startswith("Made by")  # type: ignore[misc]
    return ("", "") if made or what == "exception" else None


def _tell(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Leave out constructors of named tuples and errors: the class documents them."""
    lines[:] = [line for line in lines if not line.startswith(("Create new instance of", "Made by"))]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    next(field for field in PyObject.doc_field_types if field.name == "variable").label = "Attributes"
    app.add_config_value("public_names", _public_names(), "env")
    app.connect("missing-reference", _follow)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-process-docstring", _tell)
