"""One name, one thing: a class that other modules may import has a name of its own."""

from __future__ import annotations

from collections import defaultdict

from tests.test_sizes import classes

PARALLEL = {
    "RowReader": {"pyprof.unwind.formats.exidx.rows", "pyprof.unwind.formats.sframe.rules"},
    "Sampler": {"pyprof.collectors.bpf.sampler", "pyprof.collectors.ptrace.sampler"},
}
"""Rooms for the same thing, of which nobody sees two: one a format, one a way to take samples."""


def test_no_two_classes_of_different_modules_share_a_name() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for name, _ in classes():
        module, _, last = name.rpartition(".")
        if not last.startswith("_"):
            modules[last].add(module)
    assert {name: where for name, where in modules.items() if len(where) > 1} == PARALLEL
