"""Names for code without a symbol: its module, and the start of its function (`!`) or its own address (`+`).

Such a name is valid in one file only. If several files of a profile have the same name, the build ID or the inode is
added: `libssl.so.3[1f2e3d4c]!0x3b40`. Code that no file contains and no source describes counts as one function of its
program, because nothing says where its functions begin: `[JIT code of node]`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyprof.model.modules import AddressSpace, Module

_SHOWN = 8
"""Number of digits of a build ID that are shown in the name of code without a symbol."""

MADE = "[JIT code"
_NAME_IT = {
    "node": "node --perf-basic-prof …",
    "chrom": "chromium --js-flags=--perf-basic-prof --no-sandbox …",
    "python": "python3 -X perf …",
    "java": "java -XX:+PreserveFramePointer … and jcmd PID Compiler.perfmap",
}
"""Commands that make a program describe its JIT code, by the prefix of the program's name."""
_CANNOT = ("luajit",)
"""Prefixes of the names of programs that no option makes describe their JIT code."""

_MADE_IN = ("/memfd:", "/dev/zero", "/anon_hugepage")
"""Prefixes of the names of mappings that have an inode but belong to no file."""


class Labels:
    """The labels of modules in the names of code without a symbol."""

    def __init__(self, modules: Iterable[tuple[Module, str]]) -> None:
        """Create labels for code without symbols, from (module, build ID) of all modules."""
        self._files: dict[str, set[object]] = {}
        for module, build_id in modules:
            self._files.setdefault(module.name, set()).add(_file(module, build_id))

    def module_label(self, module: Module, build_id: str) -> str:
        if not module.has_file or len(self._files.get(module.name, ())) < 2:
            return module.name
        return f"{module.name}[{build_id[:_SHOWN] or f'inode {module.inode}'}]"


def _file(module: Module, build_id: str) -> object:
    return build_id or (module.dev, module.inode, module.path)


def name_by_start(label: str, start_rel: int) -> str:
    """Return the name of a function of which only the start is known, relative to the module's first loaded byte."""
    return f"{label}!{start_rel:#x}"


def name_runtime_code(space: AddressSpace, module: Module) -> str:
    """Return the name that stands for all code of a module that is in no file, "" for a module with a file.

    If the program named the memory, that name is included: `[JIT code of java: memfd:jit]`.
    """
    path = module.path
    if module.has_file and not path.startswith(_MADE_IN):
        return ""
    if not module.has_file and not path.startswith("[anon"):
        return path
    region = path[1:-1].partition(":")[2] if path.startswith("[") else module.name
    program = _program(space)
    return MADE + (f" of {program}" if program else "") + (f": {region}]" if region else "]")


def naming_command(region: str) -> str:
    """Return the command that makes a program describe its JIT code, or all such commands if the program is unknown.

    The result is empty if there is none.
    """
    program = region.removeprefix(f"{MADE} of ")
    if program.startswith(_CANNOT):
        return ""
    return next((text for name, text in _NAME_IT.items() if program.startswith(name)), ", ".join(_NAME_IT.values()))


def _program(space: AddressSpace) -> str:
    """Return the name of a process's program: the file with the lowest mapping. It is "" if that is a library."""
    name = next((module.name for module in space.modules if module.has_file), "")
    return "" if ".so" in name else name
