"""The manual (`make docs`): the pages of docs/, and files of the project that are read by themselves, too.

Sphinx reads copies of them, which the Makefile puts into one folder. docs/index.md gives the order: each item of its
list is a part of the manual, and the links in it are the part's pages.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

project = "pyprof"
author = "the pyprof authors"
extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = "pyprof"
html_copy_source = False
html_show_sphinx = False
myst_heading_anchors = 4
nitpicky = True
highlight_language = "none"

PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "bench/README.md": "bench.md"}
"""Files that stand outside of docs/ -> their pages (as the Makefile copies them)."""

_LINK = re.compile(r"\]\(((?:\.\./)*)([\w./-]+\.md)(#[\w-]+)?\)")
_PART = re.compile(r"^\d+\. \*\*(.+?)\.\*\*(.*?)(?=^\d+\. |\n\n|\Z)", re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Links as they work in a checkout become links between pages; the index gets its table of contents."""
    text = _LINK.sub(lambda m: f"]({PAGES.get(m[2], m[2].removeprefix('docs/'))}{m[3] or ''})", source[0])
    if page == root_doc:
        text += "".join(toctree(name, part) for name, part in _PART.findall(text))
    source[0] = text


def toctree(name: str, part: str) -> str:
    pages = "\n".join(page for _, page, _ in _LINK.findall(part))
    return f"\n```{{toctree}}\n:hidden:\n:caption: {name}\n\n{pages}\n```\n"
