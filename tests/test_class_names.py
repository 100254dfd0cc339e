"""Tests that each public class has a unique name."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache

from tests import syntax
from tests.test_layers import sources

PARALLEL = {
    "RowReader": {"pyprof.unwind.formats.exidx_prologue_rows", "pyprof.unwind.formats.sframe_decoder"},
}
"""Names that parallel modules share, because no module uses two of them: one for each format."""


@cache
def classes() -> list[tuple[str, ast.ClassDef]]:
    """Return (qualified name, definition) of every class of the package."""
    return [
        (f"{module}.{node.name}", node)
        for module, path in sources()
        for node in syntax.nodes(path)
        if isinstance(node, ast.ClassDef)
    ]


def test_no_two_classes_of_different_modules_share_a_name() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for name, _ in classes():
        module, _, last = name.rpartition(".")
        if not last.startswith("_"):
            modules[last].add(module)
    assert {name: where for name, where in modules.items() if len(where) > 1} == PARALLEL


def test_word_that_once_meant_several_things_means_one() -> None:
    """Check also the names of type aliases."""
    words = {"Program", "Region", "Shape", "Row"}
    aliases = (
        (target.id, module)
        for module, path in sources()
        for node in syntax.tree(path).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    )
    named = [(name.rpartition(".")[2], name.rpartition(".")[0]) for name, _ in classes()]
    modules: dict[str, set[str]] = defaultdict(set)
    for name, module in (*named, *aliases):
        modules[name].add(module)
    assert {name: where for name in words if len(where := modules[name]) > 1} == {}
    assert modules["Row"]
