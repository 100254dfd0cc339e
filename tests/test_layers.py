"""The layers and rooms of docs/design.md, read from the imports; and its list of files, read from the tree."""

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

LEAVES = {"pyprof.errors", "pyprof.diagnostics", "pyprof.records"}
SOURCES = "pyprof.frame_sources"
OBJECTS = {"pyprof.model", "pyprof.objfile", *LEAVES}
ALLOWED: dict[str, set[str]] = {
    "pyprof.records": set(),
    "pyprof.errors": {"pyprof.records"},
    "pyprof.diagnostics": {"pyprof.records"},
    "pyprof.handover": set(),
    "pyprof.options": {SOURCES, "pyprof.records", "pyprof.handover"},
    SOURCES: {"pyprof.records"},
    "pyprof.model": {*LEAVES},
    "pyprof.objfile": {"pyprof.model", *LEAVES},
    "pyprof.unwind": {*OBJECTS, "pyprof.options", SOURCES},
    "pyprof.interpreters": {*OBJECTS},
    "pyprof.symbolize": {*OBJECTS},
    "pyprof.collectors": {*OBJECTS, "pyprof.options", "pyprof.handover"},
    "pyprof.runtime_code": {*OBJECTS, "pyprof.options", "pyprof.unwind", "pyprof.symbolize", "pyprof.collectors"},
    "pyprof.exporters": {"pyprof.model", "pyprof.comparison", "pyprof.errors", "pyprof.records"},
    "pyprof.comparison": {"pyprof.model", "pyprof.errors", "pyprof.records"},
    "pyprof.recording": {*OBJECTS, "pyprof.exporters"},
    "pyprof.importers": {"pyprof.model", "pyprof.recording", *LEAVES},
}
"""Layer -> layers that it may import, besides itself."""
LATE = {
    ("pyprof.model.profile", "pyprof.exporters.save"),
    ("pyprof.model.profile", "pyprof.comparison.compare"),
    ("pyprof.model.profile", "pyprof.comparison.result"),
    ("pyprof.model.profile", "pyprof.exporters.notebook"),
    ("pyprof.comparison.result", "pyprof.exporters.difference"),
    ("pyprof.comparison.result", "pyprof.exporters.notebook"),
}
"""(module, what it imports within a function, or for types): values that users hold write and compare themselves when
they are told to."""
OWNERS = {
    "pyprof.server": ("pyprof.server", "pyprof.cli"),
    "pyprof.session": ("pyprof.agent", "pyprof.api", "pyprof.cli", "pyprof.tools", "pyprof.session"),
    "pyprof.agent": ("pyprof.agent", "pyprof.server", "pyprof.cli"),
    "pyprof.tools": ("pyprof.cli", "pyprof.tools"),
    "pyprof.cli": ("pyprof.cli", "pyprof.__main__"),
}
"""Layer -> who may import it."""

SHARED = {
    "linux",
    "targets",
    "base",
    "batch_builder",
    "sampling_clock",
    "cpu_accounts",
    "closed_collectors",
    "flush",
    "switch_events",
    "thread_lives",
}
ROOMS: dict[str, set[str]] = {
    "linux": set(),
    "native": set(),
    "targets": {"linux", "thread_lives"},
    "ptrace": {*SHARED, "native"},
    "perf": SHARED,
    "gdb": SHARED,
    "postmortem": SHARED,
    "replay": SHARED,
    "offcpu": SHARED,
    "bpf": {*SHARED, "perf"},
    "hybrid": {*SHARED, "ptrace", "perf", "bpf", "offcpu"},
}
"""Room of collectors/ -> rooms and files at its top that it may import, besides itself."""


FORMAT_MODULES = ("pyprof.objfile.elf", "pyprof.objfile.pe", "pyprof.objfile.absent")
ELF_MEANT: dict[str, str] = {
    "collectors/linux/link_map.py": "the dynamic table of a running process",
    "collectors/postmortem/": "core files are ELF files, and lay processes out by program headers",
    "collectors/bpf/object.py": "a compiled BPF program is an ELF file",
    "collectors/gdb/": "a remote process is laid out by its program headers",
    "profiler/symbolize/elf_symtab.py": "the symbol tables of ELF files",
}
"""Who may import objfile.elf outside of objfile/, and why."""
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
            if node.module in ("pyprof", "pyprof.collectors"):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "pyprof"}


@pytest.mark.parametrize(("module", "path"), sources(), ids=lambda v: v if isinstance(v, str) else "")
def test_module_imports_only_layers_below_it(module: str, path: Path) -> None:
    layer = layer_of(module)
    late = {name for user, name in LATE if user == module}
    if module == "pyprof":  # names for users, imported when they are first used
        return
    assert late <= imports(path)
    used = {layer_of(name) for name in imports(path) - late} - {layer, "pyprof", "pyprof.__version__"}
    if layer in ALLOWED:
        assert used <= ALLOWED[layer]
    for owned, owners in OWNERS.items():
        assert owned not in used or module.startswith(owners)


@pytest.mark.parametrize("room", ROOMS)
def test_room_of_collectors_imports_only_what_it_may(room: str) -> None:
    files = sorted((ROOT / "collectors" / room).glob("*.py"))
    assert len(files) > 1
    for path in files:
        used = {name.split(".")[2] for name in imports(path) if name.startswith("pyprof.collectors.")}
        assert used <= {room, *ROOMS[room]}, path


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


def test_every_room_of_collectors_has_its_rule() -> None:
    assert {path.parent.name for path in (ROOT / "collectors").glob("*/__init__.py")} == set(ROOMS)


def test_ctypes_is_used_for_the_c_library_and_for_our_own_code_only() -> None:
    users = [
        str(path.relative_to(ROOT))
        for _, path in sources()
        if any("ctypes" in line for line in path.read_text().splitlines() if line.startswith(("import", "from")))
    ]
    assert sorted(users) == ["collectors/linux/libc.py", "collectors/native/code.py"]


def test_design_names_every_file_and_no_other() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    (block,) = re.findall(r"A test compares both lists with the tree:\n\n((?:    .*\n)+)", page)
    named: set[str] = set()
    folder = ""
    for word in block.split():
        if word.endswith("/"):
            folder = word
        else:
            assert f"{folder}{word}.py" not in named
            named.add(f"{folder}{word}.py")
    there = {str(path.relative_to(ROOT)) for _, path in sources() if path.name != "__init__.py"}
    assert named | {"start/__init__.py"} == there | {"start/__init__.py"}


@pytest.mark.parametrize("init", [path for _, path in sources() if path.name == "__init__.py"], ids=str)
def test_docstring_of_a_room_names_its_files_and_rooms(init: Path) -> None:
    text = ast.get_docstring(syntax.tree(init)) or ""
    named = set(re.findall(r"^(\w+/?)  +\S", text, re.M))
    files = {path.stem for path in init.parent.glob("*.py") if not path.stem.startswith("__")}
    rooms = {f"{path.parent.name}/" for path in init.parent.glob("*/__init__.py")}
    assert named == files | rooms - {"assets/"}


def calls_and_imports(path: Path) -> set[str]:
    """Names of the modules that a file imports and of the functions that it calls by their bare names."""
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
    "collectors/targets/launch.py",
    "collectors/ptrace/guard.py",
    "profiler/__main__.py",
    "profiler/session/worker/hurry.py",
    "profiler/session/worker/process.py",
}
"""The child that becomes a command undoes what its parent did to its signals; stops are waited for by
SIGCHLD, should it be ignored in the main thread; __main__ is the command line; the worker leaves signals to
the sampler, and obeys the one that says that its time is up.
"""


@pytest.mark.parametrize(("module", "path"), sources(), ids=lambda v: v if isinstance(v, str) else "")
def test_library_does_not_print_read_arguments_or_handle_signals(module: str, path: Path) -> None:
    found = calls_and_imports(path)
    if module.startswith(("pyprof.cli", "pyprof_start")):
        return
    assert not found & {"print()", "input()", "argparse", "rich", "sys.stdout", "sys.stderr", "sys.stdin"}
    text = path.read_text()
    if str(path.relative_to(ROOT)) not in OWN_SIGNALS:
        assert "signal.signal(" not in text
        assert "setitimer(" not in text
    assert "sys.exit(" not in text or module == "pyprof.__main__"
