"""The Sphinx configuration of the manual (`make docs`): the pages of docs/, and files of the project that are also read
outside of it.

Sphinx reads copies of these files, which the Makefile puts into one folder. docs/index.md gives the order: each item of
its list is a part of the manual, and the links in the item are the part's pages. docs/decisions/index.md also lists its
pages.
"""

from __future__ import annotations

import posixpath
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
"""Files outside of docs/ that are pages of the manual, with the names of the pages as the Makefile copies them."""

SOURCES = {page: source for source, page in PAGES.items()}

_LINK = re.compile(r"\]\(((?:\.\./)*[\w./-]+\.md)(#[\w-]+)?\)")
_PART = re.compile(r"^\d+\. \*\*(.+?)\.\*\*(.*?)(?=^\d+\. |\n\n|\Z)", re.MULTILINE | re.DOTALL)


def setup(app: Sphinx) -> None:
    app.connect("source-read", read)


def read(app: Sphinx, page: str, source: list[str]) -> None:
    """Convert the links between files in the source of a page to links between pages. The two index pages also get a
    table of contents.
    """
    text = _LINK.sub(lambda link: f"]({page_of(link[1], f'{page}.md')}{link[2] or ''})", source[0])
    if page == root_doc:
        text += "".join(toctree(name, part) for name, part in _PART.findall(text))
    elif page.endswith("/index"):
        text += toctree("", text)
    source[0] = text


def page_of(link: str, page: str) -> str:
    """Return the target of a link to a file as a link between pages of the manual, relative to the page that contains
    it.
    """
    source = SOURCES.get(page, f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    return posixpath.relpath(PAGES.get(path, path.removeprefix("docs/")), posixpath.dirname(page) or ".")


def toctree(name: str, part: str) -> str:
    pages = "\n".join(page for page, _ in _LINK.findall(part))
    caption = f":caption: {name}\n" if name else ""
    return f"\n```{{toctree}}\n:hidden:\n{caption}\n{pages}\n```\n"
