"""The syntax trees of the project's files, each parsed once a process: many tests of the sources read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Of the whole file, as ast.walk() gives them."""
    return tuple(ast.walk(tree(path)))
