"""Sphinx: Markdown pages and the reference from the docstrings, one theme, warnings are errors (see the Makefile)."""

import sys
from importlib import import_module
from importlib.metadata import version as installed
from importlib.util import find_spec
from pathlib import Path

from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PyObject
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock

project = "SEJ"
copyright = "the SEJ authors"
release = version = installed("sej-journals")

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "commands"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_ext"]

autoclass_content = "both"
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # What a public class has from a private one is public; what it has from these, everybody knows.
    "inherited-members": "BaseException,Enum,NamedTuple,StreamingQueryListener,int,tuple",
}
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_preserve_defaults = True
# Where the extra `spark` is not installed, its part of the reference is built from the docstrings alone; where `hub` is
# not, its page is left out: what gRPC generated cannot be stood in for.
autodoc_mock_imports = [name for name in ("numpy", "pyarrow", "pyspark") if find_spec(name) is None]
WITH_HUB = find_spec("grpc") is not None
if not WITH_HUB:
    exclude_patterns += ["reference/wire.md"]
    suppress_warnings = ["toc.not_readable", "myst.xref_missing"]
napoleon_use_ivar = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
nitpicky = True
# Other projects' names cannot be followed from here; annotations name types that are nobody's to call.
nitpick_ignore_regex = [("py:.*", r"(?!(sej|shard|hub|textqueue|kestrel|pipeline)\.).*"), ("py:class", ".*")]

highlight_language = "none"  # a block that is code says of what
html_theme = "furo"
html_title = f"SEJ {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]

PACKAGES = ["sej", "shard", "hub", "textqueue", "kestrel", "kestrel.segmented", "pipeline"] + ["hub.wire"] * WITH_HUB


def _public_names() -> dict[str, str]:
    """Where a name is defined → where the reference has it: `sej.writing.writer.Writer` → `sej.Writer`."""
    found = {}
    with mock(autodoc_mock_imports):
        for package in PACKAGES:
            module = import_module(package)
            for name in module.__all__:
                value = getattr(module, name)
                home, private = getattr(value, "__module__", package), getattr(value, "__qualname__", name)
                found[f"{home}.{private}"] = f"{package}.{name}"
    return found


def _follow(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element) -> Element | None:
    """Lead a reference to a name's own module to the public name."""
    target = node.get("reftarget", "")
    for private, public in app.config.public_names.items():
        if target == private or target.startswith(f"{private}."):
            name = public + target.removeprefix(private)
            return env.get_domain("py").resolve_xref(
                env, node["refdoc"], app.builder, node["reftype"], name, node, text
            )
    return None


def _skip(app: Sphinx, what: str, name: str, value: object, skip: bool, options: object) -> bool | None:
    """A named tuple's fields are told by its class; "alias for field number 3" tells nothing."""
    return True if type(value).__name__ == "_tuplegetter" else None


def _sign(
    app: Sphinx, what: str, name: str, value: type, options: object, signature: str, returns: str
) -> tuple[str, str] | None:
    """What the library makes for its users has no arguments that they need to know."""
    made = what == "class" and (value.__init__.__doc__ or "").startswith("Made by")  # type: ignore[misc]
    return ("", "") if made or what == "exception" else None


def _tell(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """A named tuple's constructor, and an error's, are told by the class."""
    lines[:] = [line for line in lines if not line.startswith(("Create new instance of", "Made by"))]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    next(field for field in PyObject.doc_field_types if field.name == "variable").label = "Attributes"
    app.add_config_value("public_names", _public_names(), "env")
    app.connect("missing-reference", _follow)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _sign)
    app.connect("autodoc-process-docstring", _tell)
