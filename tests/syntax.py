"""The syntax trees of the project's files, each parsed once a process: many tests of the sources read them."""

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
    """Of the whole file, as ast.walk() gives them."""
    with no_collections():
        return tuple(ast.walk(tree(path)))


@contextmanager
def no_collections() -> Iterator[None]:
    """Trees stay, and are many objects: the garbage collector would look at all of them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
