"""How Sphinx builds this documentation."""

import re
from typing import Any

import sampleapp

project = "sampleapp"
author = "the sampleapp developers"
version = release = sampleapp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx_copybutton"]
exclude_patterns = ["_build"]

# Docstrings write names in single backticks; a name that has no page of its own stays a name.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Doctests are those that are marked as such; prose may show a prompt.
doctest_test_doctest_blocks = ""

html_theme = "furo"
html_title = f"sampleapp {release}"
html_static_path = ["_static"]
html_css_files = ["sampleapp.css"]
html_theme_options = {
    "navigation_with_keys": True,
}
html_show_copyright = False
html_show_sphinx = False
# Of a session, only the commands are copied: neither the prompts nor what is printed. A line that ends in
# a backslash goes on.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
# One module has a page of its own; an index of one says nothing.
html_domain_indices = False
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
