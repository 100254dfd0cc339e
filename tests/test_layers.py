"""The layers of docs/design.md, read from the imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "profiler": "pyprof",
    "unwind": "pyprof.unwind",
    "collectors": "pyprof.collectors",
    "interpreters": "pyprof.interpreters",
    "exporters": "pyprof.exporters",
    "start": "pyprof_start",
}

LEAVES = {"pyprof.errors", "pyprof.diagnostics"}
ALLOWED: dict[str, set[str]] = {
    "pyprof.errors": set(),
    "pyprof.diagnostics": set(),
    "pyprof.options": set(),
    "pyprof.model": {"pyprof.errors", "pyprof.diagnostics"},
    "pyprof.objfile": {"pyprof.model", *LEAVES},
    "pyprof.unwind": {"pyprof.model", "pyprof.objfile", "pyprof.options", *LEAVES},
    "pyprof.interpreters": {"pyprof.model", "pyprof.objfile", *LEAVES},
    "pyprof.symbolize": {"pyprof.model", "pyprof.objfile", *LEAVES},
    "pyprof.collectors": {"pyprof.model", "pyprof.objfile", "pyprof.options", *LEAVES},
    "pyprof.exporters": {"pyprof.model", "pyprof.errors"},
}
"""Layer -> layers that it may import, besides itself. The session and the command line import everything."""


def layer_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def sources() -> list[tuple[str, Path]]:
    found = []
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = [p for p in path.relative_to(ROOT / folder).with_suffix("").parts if p != "__init__"]
            found.append((".".join([package, *parts]), path))
    return found


def imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "pyprof"}
    return {name for name in names if name.split(".")[0] == "pyprof"}


@pytest.mark.parametrize(("module", "path"), sources(), ids=lambda v: v if isinstance(v, str) else "")
def test_module_imports_only_layers_below_it(module: str, path: Path) -> None:
    layer = layer_of(module)
    used = {layer_of(name) for name in imports(path)} - {layer, "pyprof", "pyprof.__version__"}
    if layer in ALLOWED:
        assert used <= ALLOWED[layer]
    assert module.startswith(("pyprof.cli", "pyprof.__main__")) or "pyprof.cli" not in used
    assert module.startswith(("pyprof.cli", "pyprof.session")) or "pyprof.session" not in used


def test_ctypes_is_used_in_one_file_only() -> None:
    users = [
        str(path.relative_to(ROOT))
        for _, path in sources()
        if any("ctypes" in line for line in path.read_text().splitlines() if line.startswith(("import", "from")))
    ]
    assert users in ([], ["collectors/libc.py"])
