"""Syntax trees of the project's files, each parsed once in a process for all tests of the source code."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    with no_collections():
        return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file in the order of ast.walk()."""
    with no_collections():
        return tuple(ast.walk(tree(path)))


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable garbage collection while long-lived syntax trees are created, which consist of many objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
