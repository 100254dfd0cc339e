"""Tests that a confined worker, which cannot open files, needs no late imports."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LOADED = """
import json, sys
from pyprof.cli.accelerated_start import _Name, _Part, leave_out
leave_out()
import numpy
from pyprof.session.worker import interpreter_symbols, sandbox, worker_loop
if sys.argv[1:]:
    import pyprof.session.core_and_crash_dump_profile
sandbox.load()
print(json.dumps({name: module.__file__ for name, module in sys.modules.items() if name.startswith("pyprof.")}))
print(json.dumps(sorted(sys.modules)))
print(json.dumps([name for name, value in vars(numpy).items() if isinstance(value, _Name | _Part)]))
"""

OF_OTHERS = {
    "pyprof.interpreters.cpython.interpreter": "the sampler, which reads frames; the worker only names them",
    "pyprof.model.profile": "what a user of the library does with a profile",
    "pyprof.objfile.breakpad_symbol_search": "--symbols, whose worker keeps its rights",
    "pyprof.lazy_dataclasses": "what shows a record's signature (inspect)",
    "pyprof.unwind.module_unwind_sources": "--symbols, whose worker keeps its rights",
    "pyprof.collectors.registry": "the sampler",
    "pyprof.session.recording": "the sampler",
    "pyprof.session.worker.worker_process": "the sampler, and the worker before it is confined",
    "pyprof.session.worker.file_broker": "the keeper, which writes what a killed worker had recorded",
    "pyprof.symbolize.demangle": "the keeper",
    "pyprof.session.flight_recorder": "the keeper",
    "pyprof.objfile.untrusted_file_access": "the file broker, which creates scratch files",
    "pyprof.model.untrusted_text": "the keeper, which writes JSON",
}
"""Modules of the worker that import modules which the worker never needs, with the component that needs these."""


def late_imports(path: str) -> Iterator[str]:
    """Yield the modules that functions import."""
    tree = ast.parse(Path(path).read_text())
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    yield from (name.name for name in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    yield node.module


def used_of_numpy(path: str) -> Iterator[str]:
    """Yield the names that a module uses from np."""
    for node in ast.walk(ast.parse(Path(path).read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np":
            yield node.attr


@pytest.fixture(scope="module")
def loaded() -> tuple[dict[str, str], set[str]]:
    """Return pyprof's modules with their files, and the names of all modules, in the worker of a recording."""
    return modules_of()


def modules_of(*dead: str) -> tuple[dict[str, str], set[str]]:
    ours, names, _ = said_of(*dead)
    return ours, set(names)


def said_of(*dead: str) -> list[Any]:
    """Return pyprof's modules with their files, all modules, and the lazily loaded names of numpy
    (cli/accelerated_start.py).

    Args:
        dead: Any argument, for a worker that reads a core file or a minidump.
    """
    said = subprocess.run([sys.executable, "-c", LOADED, *dead], check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in said.splitlines()]


def test_what_functions_of_the_worker_import_is_loaded_before_it_is_confined(
    loaded: tuple[dict[str, str], set[str]],
) -> None:
    ours, names = loaded
    late = {(module, name) for module, path in ours.items() for name in late_imports(path)}
    assert {("pyprof.session.worker.worker_loop", "pyprof.session.pipeline.journal_writer")} <= late
    assert {module for module, name in late if name not in names} - set(OF_OTHERS) == set()


def test_what_a_core_file_or_a_minidump_needs_besides_is_loaded_with_its_reader() -> None:
    ours, names = modules_of("dead")
    late = {(module, name) for module, path in ours.items() for name in late_imports(path)}
    assert "pyprof.objfile.minidump" in ours
    assert {module for module, name in late if name not in names} - set(OF_OTHERS) == set()


@pytest.mark.parametrize("dead", [(), ("dead",)], ids=["alive", "dead"])
def test_nothing_of_numpy_that_the_worker_uses_is_left_out(dead: tuple[str, ...]) -> None:
    """Check that the worker uses no lazily loaded name, which it could not load later."""
    ours, _, left_out = said_of(*dead)
    assert {"pad", "linalg", "save"} <= set(left_out)
    used = {(module, name) for module, path in ours.items() for name in used_of_numpy(path)}
    assert ("pyprof.session.pipeline.window_row_store", "broadcast_to") in used
    assert {each for each in used if each[1] in left_out} == set()


def test_who_is_excused_has_a_reason(loaded: tuple[dict[str, str], set[str]]) -> None:
    ours, names = loaded
    needless = {module for module in OF_OTHERS if module in ours and not set(late_imports(ours[module])) - names}
    assert needless == set()


def test_nothing_of_the_network_is_loaded(loaded: tuple[dict[str, str], set[str]]) -> None:
    assert loaded[1] & {"http", "ssl", "urllib.request", "email", "sqlite3"} == set()
