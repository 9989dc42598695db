"""Docstrings name the parameters of their functions, and other names of the code."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
from pathlib import Path

import sampleapp

ROOT = Path(sampleapp.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)`(?!`)")
OF_OTHERS = {
    "BZ2Decompressor",
    "CertificateOptions",
    "DelayedCall",
    "MultiService",
    "ReactorBase",
    "SslTransportLayer",
    "cleanFailure",
    "executescript",
    "optionsForClientTLS",
    "readBody",
}
"""Names of Python, Twisted and Kafka that docstrings mention, and the code does not use."""
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


def docstrings(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            yield node, ast.get_docstring(node) or ""


def identifiers(tree):
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname"):
            if isinstance(name := getattr(node, field, None), str):
                yield from name.split(".")


def is_there(name):
    """Find a name with all of its packages, also that of a method in an interface."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return hasattr(found, "names") and part in found.names(all=True)
            found = getattr(found, part)
        return True
    return False


def wrong_names(path, tree, known):
    """Find parameters and names in docstrings that the code does not have."""
    for node, text in docstrings(tree):
        if isinstance(node, FUNCTIONS):
            parameters = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            yield from {*re.findall(r":param (\w+):", text)} - parameters
        for name in [*NAME.findall(text), *re.findall(r":raise ([\w.]+):", text)]:
            if name.startswith(("sampleapp.", "sampleapp_testing.")):
                is_known = is_there(name)
            elif isinstance(node, ast.Module) and path.name == "__init__.py" and name.islower():
                # One of the modules of the package.
                module = path.parent / name.partition(".")[0]
                is_known = module.is_dir() or module.with_suffix(".py").exists()
            else:
                is_known = name.rpartition(".")[2] in known
            if not is_known:
                yield name


def test_docstrings_speak_only_of_parameters_and_names_that_there_are():
    trees = {path: ast.parse(path.read_text()) for path in FILES}
    known = OF_OTHERS | {*dir(builtins), *(path.stem for path in FILES)}
    known.update(*map(identifiers, trees.values()))
    wrong = {
        str(path.relative_to(ROOT)): names
        for path, tree in trees.items()
        if (names := [*wrong_names(path, tree, known)])
    }
    assert wrong == {}
