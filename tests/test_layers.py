"""Tests that imports follow the layers in docs/design.md, and that package docstrings list their modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pyprof.model import arch
from tests import syntax

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = {
    "profiler": "pyprof",
    "unwind": "pyprof.unwind",
    "collectors": "pyprof.collectors",
    "interpreters": "pyprof.interpreters",
    "exporters": "pyprof.exporters",
    "start": "pyprof_start",
}

DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, list[str]]:
    """Return the table of docs/design.md with this heading: the other cells of each row by its first cell."""
    (body,) = re.findall(rf"^{re.escape(heading)}\n\|[-|]+\n((?:\|.*\n)+)", DESIGN, re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.replace("`", "").splitlines()]
    return {name: cells for name, *cells in rows}


def listed(cell: str) -> set[str]:
    return set(cell.replace(",", " ").split())


LAYERS = table("| package | may import | may be imported by |")
LATE = {("pyprof.model.profile", "pyprof.comparison.result")}
"""(module, module of a higher layer that it imports for types only)."""
ROOMS = table("| room | may import |")
FLEET = table("| room of fleet | may import |")
SHARED = {"linux", "targets"} | {
    path.stem for path in (ROOT / "collectors").glob("*.py") if path.stem not in ("__init__", "registry")
}
"""The modules and packages that "shared" stands for in the table of packages."""

FORMAT_MODULES = ("pyprof.objfile.elf", "pyprof.objfile.pe")
ELF_MEANT: dict[str, str] = {
    "collectors/postmortem/": "core files are ELF files, and lay processes out by program headers",
    "collectors/bpf/bpf_object.py": "a compiled BPF program is an ELF file",
    "collectors/gdb_stub/": "a remote process is laid out by its program headers",
    "profiler/symbolize/elf_symtab.py": "the symbol tables of ELF files",
}
"""Modules outside of objfile/ that may import objfile.elf_file and the other readers of ELF, with the reason."""
FORMATS = ("ElfFile", "AbsentFile", "PeImage")


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
    for node in syntax.nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names.add(node.module or "")
            if node.module in ("pyprof", "pyprof.collectors", "pyprof.fleet"):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "pyprof"}


@pytest.mark.parametrize(("module", "path"), sources(), ids=lambda v: v if isinstance(v, str) else "")
def test_module_imports_only_layers_below_it(module: str, path: Path) -> None:
    late = {name for user, name in LATE if user == module}
    if module in ("pyprof", "pyprof_start"):  # the public names, which are imported lazily, and the command
        return
    assert late <= imports(path)
    layer = module.split(".")[1]
    used = {name.split(".")[1] for name in imports(path) - late if "." in name} - {layer, "__version__"}
    may_import = LAYERS[layer][0] if layer in LAYERS else "any"
    assert may_import == "any" or used <= listed(may_import)
    for other in used:
        may_be_imported_by = LAYERS[other][1] if other in LAYERS else "any"
        assert may_be_imported_by == "any" or layer in listed(may_be_imported_by)


def test_every_package_and_room_has_its_rule() -> None:
    assert {layer_of(module).removeprefix("pyprof.") for module, path in sources() if path.name == "__init__.py"} - {
        "pyprof",
        "pyprof_start",
    } <= set(LAYERS)
    assert {path.parent.name for path in (ROOT / "collectors").glob("*/__init__.py")} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_room_of_collectors_imports_only_what_it_may(room: str) -> None:
    allowed = listed(ROOMS[room][0])
    allowed |= SHARED if "shared" in allowed else set()
    files = sorted((ROOT / "collectors" / room).glob("*.py"))
    assert len(files) > 1
    for path in files:
        used = {name.split(".")[2] for name in imports(path) if name.startswith("pyprof.collectors.")}
        assert used <= {room, *allowed}, path


@pytest.mark.parametrize("room", FLEET)
def test_room_of_fleet_imports_only_what_it_may(room: str) -> None:
    fleet = ROOT / "profiler" / "fleet"
    assert {path.parent.name for path in fleet.glob("*/__init__.py")} == set(FLEET)
    allowed = listed(FLEET[room][0])
    allowed |= {"wire", *(path.stem for path in fleet.glob("*.py"))} if "shared" in allowed else set()
    for path in (fleet / room).rglob("*.py"):
        used = {name.split(".")[2] for name in imports(path) if name.startswith("pyprof.fleet.")}
        assert used <= {room, *allowed}, path


def test_object_files_are_read_through_their_protocol() -> None:
    users = {
        str(path.relative_to(ROOT))
        for module, path in sources()
        if not module.startswith("pyprof.objfile")
        if any(name.startswith(FORMAT_MODULES) for name in imports(path))
    }
    assert {user for user in users if not user.startswith(tuple(ELF_MEANT))} == set()
    assert [place for place in ELF_MEANT if not any(user.startswith(place) for user in users)] == []


def test_nobody_asks_an_object_file_for_its_class() -> None:
    asked = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for _, path in sources()
        for node in syntax.nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
        if any(isinstance(name, ast.Name) and name.id in FORMATS for name in ast.walk(node))
    ]
    assert asked == []


def test_architectures_are_named_by_their_own_files_only() -> None:
    names = {name for name, value in vars(arch).items() if isinstance(value, arch.Arch)}
    assert {"X86_64", "AARCH64"} <= names
    users = {
        str(path.relative_to(ROOT))
        for module, path in sources()
        if not module.startswith(("pyprof.model.arch", "pyprof.collectors.linux."))
        for node in syntax.nodes(path)
        if isinstance(node, ast.ImportFrom) and {alias.name for alias in node.names} & names
    }
    assert users == set()


def test_ctypes_is_used_for_the_c_library_and_for_our_own_code_only() -> None:
    users = [
        str(path.relative_to(ROOT))
        for _, path in sources()
        if any("ctypes" in line for line in path.read_text().splitlines() if line.startswith(("import", "from")))
    ]
    assert sorted(users) == [
        "collectors/linux/libc.py",
        "collectors/native/sampling_loop_bindings.py",
        "unwind/code_analysis/function_analysis_bindings.py",
        "unwind/native_unwinder.py",
    ]


@pytest.mark.parametrize("init", [path for _, path in sources() if path.name == "__init__.py"], ids=str)
def test_docstring_of_a_room_names_its_files_and_rooms(init: Path) -> None:
    text = ast.get_docstring(syntax.tree(init)) or ""
    named = set(re.findall(r"^(\w+/?)  +\S", text, re.M))
    files = {path.stem for path in init.parent.glob("*.py") if not path.stem.startswith("__")}
    rooms = {f"{path.parent.name}/" for path in init.parent.glob("*/__init__.py")}
    assert named == files | rooms - {"assets/"}


def calls_and_imports(path: Path) -> set[str]:
    """Return the names of the modules that a file imports and of the functions that it calls without a prefix."""
    found: set[str] = set()
    for node in syntax.nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.add(f"{node.func.id}()")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.startswith("std"):
            found.add(f"{node.value.id}.{node.attr}")
    return found


OWN_SIGNALS = {
    "collectors/targets/command_launch.py",
    "collectors/ptrace/thread_stop.py",
    "profiler/__main__.py",
    "profiler/session/worker/deadline.py",
    "profiler/session/worker/worker_process.py",
}
"""Modules that may change signal handlers.

The child that becomes a command restores its parent's changes. Stops need SIGCHLD, which the main thread may ignore.
__main__ is the command line. The worker leaves signals to the sampler, and obeys the one at its deadline.
"""


@pytest.mark.parametrize(("module", "path"), sources(), ids=lambda v: v if isinstance(v, str) else "")
def test_library_does_not_print_read_arguments_or_handle_signals(module: str, path: Path) -> None:
    found = calls_and_imports(path)
    if module.startswith(("pyprof.cli", "pyprof.fleet.cli", "pyprof_start")):
        return
    assert not found & {"print()", "input()", "argparse", "rich", "sys.stdout", "sys.stderr", "sys.stdin"}
    text = path.read_text()
    if str(path.relative_to(ROOT)) not in OWN_SIGNALS:
        assert "signal.signal(" not in text
        assert "setitimer(" not in text
    assert "sys.exit(" not in text or module == "pyprof.__main__"
