"""Classes that a reader can hold in mind: few attributes, few methods, or a sentence that says why not."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests import syntax
from tests.test_layers import sources

MOST_ATTRIBUTES, MOST_METHODS = 15, 20
WHY = re.compile(r"\bIt\s+has\s+(more|\d+)\s+(attributes|columns|fields|methods)\b")
"""What the docstring of a larger class has."""


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    return [
        (f"{module}.{node.name}", node)
        for module, path in sources()
        for node in syntax.nodes(path)
        if isinstance(node, ast.ClassDef)
    ]


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef) for each in node.body)


def attributes(node: ast.ClassDef) -> int:
    """Fields that the class declares, and what its methods assign to `self`."""
    declared = {ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)}
    return len(declared | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and is_set(each)})


def is_set(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


@cache
def is_large(node: ast.ClassDef) -> bool:
    return attributes(node) > MOST_ATTRIBUTES or methods(node) > MOST_METHODS


def test_large_class_says_why_it_is_one() -> None:
    silent = {
        f"{name}: {attributes(node)} attributes, {methods(node)} methods"
        for name, node in classes()
        if is_large(node) and not WHY.search(ast.get_docstring(node) or "")
    }
    assert silent == set()


def test_counts_that_docstrings_of_large_classes_give_are_right() -> None:
    stated = [(name, node, said) for name, node in classes() for said in WHY.findall(ast.get_docstring(node) or "")]
    wrong = {
        f"{name}: {count} {what}"
        for name, node, (count, what) in stated
        if count != "more" and int(count) != (methods(node) if what == "methods" else attributes(node))
    }
    assert len(stated) > 10
    assert wrong == set()


@pytest.mark.parametrize(
    ("fields", "functions", "large"), [(15, 20, False), (16, 0, True), (0, 21, True)], ids=["fits", "fields", "methods"]
)
def test_what_is_counted(fields: int, functions: int, large: bool) -> None:
    lines = ["class Made:"]
    lines += [f"    field{n}: int" for n in range(fields - 1)]
    lines += [f"    def method{n}(self): local = self.field0; self.more = local" for n in range(functions)]
    lines += ["    last: int"] * (fields > 0 and functions == 0)
    (made,) = ast.parse("\n".join([*lines, ""])).body
    assert isinstance(made, ast.ClassDef)
    assert is_large(made) == large
