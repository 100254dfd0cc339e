"""One name, one thing: a class that others may import has a name of its own. Names have the field's words."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests import syntax
from tests.test_layers import ROOT, sources
from tests.test_sizes import classes

PARALLEL = {
    "RowReader": {"pyprof.unwind.formats.exidx.rows", "pyprof.unwind.formats.sframe.rules"},
    "Sampler": {"pyprof.collectors.bpf.sampler", "pyprof.collectors.ptrace.sampler"},
}
"""Rooms for the same thing, of which nobody sees two: one a format, one a way to take samples."""

OLD = (
    *(
        "askew",
        "crooked",
        "doors?",
        "famil(y|ies)",
        "hand_over",
        "hollow",
        "looks",
        "pace",
        "perf_events",
        "strangers?",
    ),
    *("stretch(es)?", "tell(s|ing)?", "told", "untold", "tips?", "way_out", "whole_time", "witness(es)?"),
)
"""What names once had, and the field does not use."""
WORD = re.compile(rf"(?<![a-z])({'|'.join(OLD)})(?![a-z])")
MEANT = re.compile(r"^_?C_FAMILY$|^looks_\w+$")
"""Languages like C; a question, as in looks_secret()."""


def test_no_two_classes_of_different_modules_share_a_name() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for name, _ in classes():
        module, _, last = name.rpartition(".")
        if not last.startswith("_"):
            modules[last].add(module)
    assert {name: where for name, where in modules.items() if len(where) > 1} == PARALLEL


def test_word_that_once_meant_several_things_means_one() -> None:
    """Also as the name of a type that is no class."""
    words = {"Program", "Region", "Lanes", "Shape", "Row"}
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
    assert modules["Lanes"]


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Of what a file defines: itself, its classes, functions, parameters, variables and attributes."""
    yield 0, path.parent.name if path.name == "__init__.py" else path.stem
    for node in syntax.nodes(path):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def is_old(name: str) -> bool:
    in_words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return bool(WORD.search(in_words)) and not MEANT.match(name)


def test_no_name_has_a_word_that_the_field_does_not_use() -> None:
    paths = [*(path for _, path in sources()), *sorted((ROOT / "bench").rglob("*.py"))]
    found = [(f"{path.relative_to(ROOT)}:{line}", name) for path in paths for line, name in names(path)]
    assert len(found) > 20_000
    assert [(where, name) for where, name in found if is_old(name)] == []


def test_old_words_are_seen_in_whatever_case_and_only_as_words() -> None:
    assert all(is_old(name) for name in ("StopDoor", "_tell", "WHOLE_TIME", "code_told_2", "Families", "_looks"))
    assert not any(is_old(name) for name in ("tooltip", "retelling", "perf_event_open", "looks_secret", "C_FAMILY"))
