"""Tests of the size of the layer: how many classes are collectors, and how large the combined one's classes are."""

from __future__ import annotations

import ast

import pytest

from tests.test_class_names import classes

PROTOCOL = {"batches", "learn", "threads", "retire", "stats", "stop", "close"}
COLLECTORS = {
    "GdbRemoteCollector",
    "GoroutineCollector",
    "KernelCollector",
    "PtraceCollector",
    "CombinedCollector",
    "SavedThreads",
    "WallClockCollector",
}
"""The classes that implement the collector protocol: three kinds of sources of live processes, a stub, saved threads,
the combined collector, and the threads of a dump with its goroutines.
"""
MAX_METHODS = 20


def methods(node: ast.ClassDef) -> set[str]:
    """Return the names of the methods that a class defines, also by assignment."""
    assigned = (each.targets[0] for each in node.body if isinstance(each, ast.Assign))
    names = {target.id for target in assigned if isinstance(target, ast.Name)}
    return names | {each.name for each in node.body if isinstance(each, ast.FunctionDef)}


def test_seven_classes_implement_the_collector_protocol() -> None:
    found = {name.rpartition(".")[2]: node for name, node in classes()}
    protocols = {name for name, node in found.items() if any(ast.unparse(base) == "Protocol" for base in node.bases)}

    def inherited(name: str) -> set[str]:
        node = found.get(name)
        return set() if node is None else methods(node).union(*(inherited(ast.unparse(base)) for base in node.bases))

    assert {name for name in found if inherited(name) >= PROTOCOL} - protocols == COLLECTORS


def test_no_source_of_samples_inherits_another() -> None:
    samples = {
        name: node for name, node in classes() if any(ast.unparse(each) == "KernelSamples" for each in node.bases)
    }
    assert {name.rpartition(".")[2] for name in samples} == {"PerfSamples", "BpfSamples", "BpfWaitSamples"}
    sources = COLLECTORS | {name.rpartition(".")[2] for name in samples}
    heirs = {name for name, node in classes() if {ast.unparse(each) for each in node.bases} & sources}
    assert heirs == set()


@pytest.mark.parametrize(
    "module", ["combined.source_switching_collector", "combined.open_sources", "perf.kernel_collector", "bpf"]
)
def test_classes_of_router_and_kernel_samples_have_at_most_twenty_methods(module: str) -> None:
    found = {name: node.body for name, node in classes() if f".collectors.{module}." in name}
    sizes = {name: sum(isinstance(each, ast.FunctionDef) for each in body) for name, body in found.items()}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > MAX_METHODS} == {}
