"""Tests of the size of the layer: how many classes are collectors, and how large the router's classes are."""

from __future__ import annotations

import ast

import pytest

from tests.test_class_names import classes

PROTOCOL = {"batches", "learn", "threads", "retire", "stats", "stop", "close"}
COLLECTORS = {
    "BpfCollector",
    "BpfWaitCollector",
    "GdbRemoteCollector",
    "PerfCollector",
    "PtraceCollector",
    "Router",
    "SavedThreads",
    "WallClockCollector",
}
"""The classes that implement the collector protocol: five sources of live processes, a stub,
saved threads, and the router.
"""
MAX_METHODS = 20


def methods(node: ast.ClassDef) -> set[str]:
    """Return the names of the methods that a class defines, also by assignment."""
    assigned = (each.targets[0] for each in node.body if isinstance(each, ast.Assign))
    names = {target.id for target in assigned if isinstance(target, ast.Name)}
    return names | {each.name for each in node.body if isinstance(each, ast.FunctionDef)}


def test_eight_classes_implement_the_collector_protocol() -> None:
    found = {name.rpartition(".")[2]: node for name, node in classes()}
    protocols = {name for name, node in found.items() if any(ast.unparse(base) == "Protocol" for base in node.bases)}

    def inherited(name: str) -> set[str]:
        node = found.get(name)
        return set() if node is None else methods(node).union(*(inherited(ast.unparse(base)) for base in node.bases))

    assert {name for name in found if inherited(name) >= PROTOCOL} - protocols == COLLECTORS


@pytest.mark.parametrize("module", ["router", "open_sources"])
def test_classes_of_the_router_have_at_most_twenty_methods(module: str) -> None:
    sizes = {name: len(methods(node)) for name, node in classes() if f".routing.{module}." in name}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > MAX_METHODS} == {}
