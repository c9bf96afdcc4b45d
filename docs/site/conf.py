"""Sphinx's configuration; `make docs` builds the site into build/site."""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path[:0] = [str(HERE), str(ROOT / "python"), str(ROOT / "runtime")]

project = "alpa_mlir"
_version = (ROOT / "runtime" / "alpa_runtime" / "version.py").read_text()
release = re.findall(r'^VERSION = "(.*)"', _version, re.M)[0]
copyright = "the authors of alpa_mlir"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["site"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# Links between pages are links between files, as on a code host; a heading's anchor is its text.
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 5

html_theme = "furo"
html_title = f"alpa_mlir {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_math_renderer = "mathml"
pygments_style = "default"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "py:obj"


def setup(app: Any) -> None:
    """Write the generated pages and register how formulas are shown."""
    import api_pages
    import mathml
    import mlir_lexer
    import tablegen_pages

    generated = Path(app.srcdir) / "generated"
    api_pages.write(generated / "api")
    tablegen_pages.write(generated, ROOT)
    mathml.setup(app)
    app.connect("doctree-resolved", _say_titles)
    app.connect("autodoc-process-signature", _readable)
    app.connect("autodoc-process-docstring", _separate)
    app.add_lexer("mlir", mlir_lexer.MlirLexer)


def _say_titles(app: Any, doctree: Any, page: str) -> None:
    """Let links that say a file's name, as is usual in Markdown, say the page's title."""
    for link in doctree.findall(nodes.reference):
        name = link.astext()
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), name[:-3]))
        if name.endswith(".md") and target in app.env.titles:
            link.clear()
            link += nodes.inline(text=app.env.titles[target].astext())


def _readable(
    app: Any, what: str, name: str, value: Any, options: Any, signature: str | None, result: str
) -> tuple[str | None, str]:
    """Without what Python shows for a default that is made by a function: it is no expression."""
    return signature and re.sub(r"<[^<>]*>", "...", signature), result


def _separate(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Let `Name`s be a name and a letter, as in Markdown."""
    lines[:] = [re.sub(r"(`[^`]+`)(\w?)", _apart, line) for line in lines]


def _apart(match: re.Match[str]) -> str:
    return f"{match[1]}\\ {match[2]}" if match[2] else match[1]
