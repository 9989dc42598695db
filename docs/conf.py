"""How Sphinx builds this documentation."""

import re
from typing import Any

import sampleapp

project = "sampleapp"
author = "the sampleapp developers"
version = release = sampleapp.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.doctest"]
exclude_patterns = ["_build"]

# Docstrings write names in single backticks; a name that has no page of its own stays a name.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Doctests are those that are marked as such; prose may show a prompt.
doctest_test_doctest_blocks = ""

html_theme = "alabaster"
html_theme_options = {
    "description": "HTTP in front of a broker",
    "fixed_sidebar": True,
    "page_width": "1040px",
}
html_copy_source = False
html_show_sourcelink = False


def setup(app: Any) -> None:
    """Have zope's interfaces shown in signatures by their names."""
    app.connect("autodoc-process-signature", _with_short_interfaces)


def _with_short_interfaces(*event: Any) -> tuple[str, str | None] | None:
    *_, signature, return_annotation = event
    if signature is None:
        return None
    return re.sub(r"<InterfaceClass [\w.]*?(\w+)>", r"\1", signature), return_annotation
