"""How Sphinx builds this documentation."""

import json
import os
import re
from pathlib import Path
from typing import Any

import click
from docutils import nodes
from sphinx.search.en import SearchEnglish
from sphinx.util.docutils import SphinxDirective

import sampleapp
from sampleapp.cli import main
from sampleapp.metrics.families import METRICS
from sampleapp.service.options import GROUPS

project = "sampleapp"
author = "the sampleapp developers"
version = release = sampleapp.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "sphinx_copybutton", "sphinx_design"]
# The tabs of howto/programs.rst are included there.
exclude_patterns = ["_build", "howto/languages"]

# Docstrings write names in single backticks; a name that has no page of its own stays a name.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
# Doctests are those that are marked as such; prose may show a prompt.
doctest_test_doctest_blocks = ""

html_theme = "furo"
html_title = f"sampleapp {release}"
html_favicon = "../src/sampleapp/web/openapi/page/icon.svg"
html_static_path = ["_static"]
html_css_files = ["sampleapp.css"]
# Deferred, because it changes what Sphinx's own scripts define.
html_js_files = [("search.js", {"defer": "defer"})]
html_theme_options = {
    "navigation_with_keys": True,
}
html_show_copyright = False
html_show_sphinx = False
# Only the commands of a session are copied: neither the prompts nor the output. A line that ends in a
# backslash continues.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
# Only one module has a page of its own, so there is no index of modules.
html_domain_indices = False
html_copy_source = False
html_show_sourcelink = False


# Old addresses of pages that have moved, and the pages that have their contents now.
MOVED = {
    "explanation/non-goals": "explanation/when-to-use",
    "howto/stream_proxies": "howto/proxies",
    "howto/tokens": "howto/callers",
}
REDIRECT = """<!DOCTYPE html>
<meta charset="utf-8">
<title>This page has moved</title>
<meta name="robots" content="noindex">
<meta http-equiv="refresh" content="1; url={target}">
<link rel="canonical" href="{target}">
<script>location.replace("{target}" + location.hash);</script>
<p>This page has moved: <a href="{target}">{target}</a></p>
"""


class OptionsTable(SphinxDirective):
    """One screen with each option of the service: its default and its variable, from the code."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows = [["Option", "Default", "Variable"]]
        for option in (option for group in GROUPS.values() for option in group if option.setting):
            shown = f"``{option.default}``" if option.default else "none"
            default = shown if option.kind else "off"
            again = " (may be repeated)" if option.collect else ""
            rows.append([f":option:`--{option.name}`{again}", default, f"``{option.variable}``"])
        return self.parse_text_to_nodes(_table("34 33 33", rows))


class MetricsTable(SphinxDirective):
    """Each metric of the service: its type, its labels and its HELP, from the code."""

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        rows = [["Name", "Type", "Labels", "What it is"]]
        for name, metric in METRICS.items():
            kind = metric.kind(name, metric.documentation).type
            suffix = {"counter": "_total", "info": "_info"}.get(kind, "")
            labels = ", ".join(f"``{label}``" for label in metric.labels)
            shown = kind.replace("info", "gauge")
            rows.append([f"``{name}{suffix}``", shown, labels, _marked(metric.documentation)])
        return self.parse_text_to_nodes(_table("47 12 12 29", rows))


class CommandOptions(SphinxDirective):
    """The options of a command, from its ``--help``, except those for the service and its credentials."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a description of each option."""
        (name,) = self.arguments
        command = main.commands[name]
        context = click.Context(command)
        lines = [f".. program:: sampleapp {name}", ""]
        for option in command.params:
            # A hook's URL is the sender's.
            if isinstance(option, click.Option) and (option.envvar is None or name == "hook"):
                shown, text = option.get_help_record(context)
                lines += [f".. option:: {shown}", "", f"   {_marked(text)}", ""]
        return self.parse_text_to_nodes("\n".join(lines))


class ServiceOption(SphinxDirective):
    """An option of the service: its help and its default, from the code, and the text of the page."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the description."""
        option = next(each for group in GROUPS.values() for each in group if each.name == self.arguments[0])
        value = f" <{option.kind.name.lower()}>" if option.kind else ""
        names = [f"--{option.name}{value}", *([f"-{option.short}{value}"] if option.short else [])]
        text = _marked(option.help)
        if option.kind and option.default:
            text += f" Default: ``{option.default}``."
        lines = [f".. option:: {', '.join(names)}", "", f"   {text}", ""]
        return self.parse_text_to_nodes("\n".join([*lines, *(f"   {line}" for line in self.content)]))


def _marked(text: str) -> str:
    """Return plain text as reStructuredText, with its options, URLs and paths as literals."""
    return re.sub(
        r"(--[a-z-]+(?: \"\")?|/[a-z]\S*[\w}]|\w[\w-]*[:/=]\S*[\w*}]|\w[\w-]*-\*)|[*|]",
        lambda match: f"``{match[1]}``" if match[1] else f"\\{match[0]}",
        text,
    )


def _table(widths: str, rows: list[list[str]]) -> str:
    """Return the text of a table whose first row is its head."""
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in rows:
        lines += [f"   {'  - ' if number else '* - '}{cell}" for number, cell in enumerate(row)]
    return "\n".join(lines)


class SearchWithNumbers(SearchEnglish):
    """English, with numbers: readers look for ``503``."""

    def word_filter(self, word: str) -> bool:
        """Return whether a word is kept in the index."""
        return word not in self.stopwords


def setup(app: Any) -> None:
    """Show zope's interfaces in signatures by their names, and extend the search."""
    app.connect("autodoc-process-signature", _with_short_interfaces)
    app.add_search_language(SearchWithNumbers)
    app.connect("doctree-resolved", _label_cells)
    app.connect("build-finished", _write_page_texts)
    app.connect("build-finished", _write_redirects)
    app.add_directive("options-table", OptionsTable)
    app.add_directive("metrics-table", MetricsTable)
    app.add_directive("command-options", CommandOptions)
    app.add_directive("service-option", ServiceOption)


def _label_cells(*event: Any) -> None:
    """Put the head of its column into each cell; the style sheet shows it where a row is a block."""
    _, document, _ = event
    few = 2
    for table in document.findall(nodes.table):
        heads = list(table.findall(nodes.thead))
        (body,) = table.findall(nodes.tbody)
        if not heads:
            continue
        labels = [entry.astext() for entry in heads[0][0]]
        # The first of many cells is the name of its row.
        first = 0 if len(labels) <= few else 1
        for row in body:
            for label, entry in list(zip(labels, row, strict=True))[first:]:
                if label and entry.children and isinstance(entry[0], nodes.paragraph):
                    text = f"{label} " if label.endswith("?") else f"{label}: "
                    entry[0].insert(0, nodes.inline(text, text, classes=["column"]))


def _write_page_texts(app: Any, exception: Exception | None) -> None:
    """Write the text of each page for ``search.js``, which shows excerpts of pages opened as files."""
    if exception is not None or app.builder.format != "html":
        return
    texts = {}
    for name in sorted(app.env.found_docs):
        page = app.env.get_doctree(name)
        for node in list(page.findall(lambda node: isinstance(node, nodes.raw | nodes.comment))):
            node.parent.remove(node)
        texts[name] = page.astext()
    script = f"const pageTexts = {json.dumps(texts)};\n"
    (Path(app.outdir) / "_static/page-texts.js").write_text(script, encoding="utf-8")


def _write_redirects(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    for old, new in MOVED.items():
        target = os.path.relpath(f"{new}.html", Path(old).parent)
        (Path(app.outdir) / f"{old}.html").write_text(REDIRECT.format(target=target), encoding="utf-8")


def _with_short_interfaces(*event: Any) -> tuple[str, str | None] | None:
    *_, signature, return_annotation = event
    if signature is None:
        return None
    return re.sub(r"<InterfaceClass [\w.]*?(\w+)>", r"\1", signature), return_annotation
