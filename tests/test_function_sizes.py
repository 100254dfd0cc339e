"""Functions that fit a screen, with few ways through, or a sentence that says why not; files that can be read whole."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import syntax
from tests.test_layers import sources

MOST_LINES, MOST_STRAIGHT, MOST_BRANCHES, MOST_IN_A_FILE = 40, 60, 12, 400
WHY = re.compile(r"\bIt\s+has\s+more\s+(lines|branches)\b")
"""What the docstring of a larger function has."""
TESTS = Path(__file__).parent
DATA = {
    "interpreters/programs/rungs.py": "one program, which each interpreter runs as a whole",
    "minidump/test_published_walks.py": "expected stacks, word for word as published",
}
"""Longer files below tests/, and why they are."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.match_case)


@cache
def functions() -> tuple[tuple[str, list[str], Function], ...]:
    """(name, lines of its file, function)"""
    return tuple(
        (f"{module}.{node.name}", path.read_text().splitlines(), node)
        for module, path in sources()
        for node in syntax.nodes(path)
        if isinstance(node, Function)
    )


def lines(text: list[str], node: Function) -> int:
    """Of code: without docstring, comments and empty lines."""
    assert node.end_lineno is not None
    body = text[node.lineno - 1 : node.end_lineno]
    first = node.body[0]
    if ast.get_docstring(node) is not None and first.end_lineno is not None:
        del body[first.lineno - node.lineno : first.end_lineno - node.lineno + 1]
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in body)


def branches(node: Function) -> int:
    """Statements that branch: if, elif, for, while, except and case, without those of functions inside it."""
    return sum(isinstance(each, BRANCHES) for each in own(node))


def own(node: ast.AST) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, Function | ast.ClassDef):
            yield each
            yield from own(each)


def is_large(text: list[str], node: Function) -> bool:
    """A list of options or fields, which is read from top to bottom, may be longer."""
    most = MOST_LINES if branches(node) > 1 else MOST_STRAIGHT
    return lines(text, node) > most or branches(node) > MOST_BRANCHES


def test_large_function_says_why_it_is_one() -> None:
    assert len(functions()) > 3000
    silent = {
        f"{name}: {lines(text, node)} lines, {branches(node)} branches"
        for name, text, node in functions()
        if is_large(text, node) and not WHY.search(ast.get_docstring(node) or "")
    }
    assert silent == set()


def test_functions_that_say_why_they_are_large_are_large_and_few() -> None:
    stated = [
        (name, is_large(text, node)) for name, text, node in functions() if WHY.search(ast.get_docstring(node) or "")
    ]
    assert [name for name, large in stated if not large] == []
    assert 0 < len(stated) <= 16


def test_files_can_be_read_whole() -> None:
    paths = [*(path for _, path in sources()), *TESTS.rglob("*.py")]
    assert len(paths) > 800
    long = {path.as_posix() for path in paths if len(path.read_text().splitlines()) > MOST_IN_A_FILE}
    assert long == {(TESTS / name).as_posix() for name in DATA}


@pytest.mark.parametrize(
    ("body", "large"),
    [
        (["if x: pass"] * 2 + ["x = 1"] * 37, False),
        (["if x: pass"] * 2 + ["x = 1"] * 38, True),
        (['"""Words."""', "# more", "", *["if x: pass"] * 2, *["x = 1"] * 37], False),
        (["x = 1"] * 59, False),
        (["x = 1"] * 60, True),
        (["if x: pass"] * 12, False),
        (["for x in y: pass"] * 13, True),
        (["def inner():", *["    if x: pass"] * 13], False),
    ],
    ids=["fits", "lines", "words", "straight fits", "straight", "branches fit", "branches", "inner"],
)
def test_what_is_counted_of_a_function(body: list[str], large: bool) -> None:
    text = ["def made():", *(f"    {line}" if line else "" for line in body)]
    (made,) = ast.parse("\n".join(text)).body
    assert isinstance(made, ast.FunctionDef)
    assert is_large(text, made) == large
