"""Names for code without a symbol: its module, and the start of its function (`!`) or its own address (`+`).

Such a name is valid in one file only. If several files of a profile have one name, the build-id or the inode is added:
`libssl.so.3[1f2e3d4c]!0x3b40`. Code that no file holds and nothing describes is one function of its program, because
nothing says where its functions begin: `[JIT code of node]`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyprof.model.modules import AddressSpace, Module

_SHOWN = 8
"""Digits of a build-id."""

MADE = "[JIT code"
_NAME_IT = {
    "node": "node --perf-basic-prof …",
    "chrom": "chromium --js-flags=--perf-basic-prof --no-sandbox …",
    "python": "python3 -X perf …",
    "java": "java -XX:+PreserveFramePointer … and jcmd PID Compiler.perfmap",
}
"""Command by how the program's name begins."""

_MADE_IN = ("/memfd:", "/dev/zero", "/anon_hugepage")
"""How the names of memory begin that has an inode and is in no file."""


class Labels:
    """What the modules of a profile's nameless code are called."""

    def __init__(self, modules: Iterable[tuple[Module, str]]) -> None:
        """modules: with their build-ids."""
        self._files: dict[str, set[object]] = {}
        for module, build_id in modules:
            self._files.setdefault(module.name, set()).add(_file(module, build_id))

    def of(self, module: Module, build_id: str) -> str:
        if not module.has_file or len(self._files.get(module.name, ())) < 2:
            return module.name
        return f"{module.name}[{build_id[:_SHOWN] or f'inode {module.inode}'}]"


def _file(module: Module, build_id: str) -> object:
    return build_id or (module.dev, module.inode, module.path)


def unnamed(label: str, start_rel: int) -> str:
    """The name of a function whose start is all that is known. start_rel: from the module's first loaded byte."""
    return f"{label}!{start_rel:#x}"


def runtime_code(space: AddressSpace, module: Module) -> str:
    """What stands for all code of a module that is in no file; "" of a module that is a file, known or not.

    A name that the program gave to the memory is part of it: `[JIT code of java: memfd:jit]`.
    """
    path = module.path
    if module.has_file and not path.startswith(_MADE_IN):
        return ""
    if not module.has_file and not path.startswith("[anon"):
        return path
    region = path[1:-1].partition(":")[2] if path.startswith("[") else module.name
    program = _program(space)
    return MADE + (f" of {program}" if program else "") + (f": {region}]" if region else "]")


def name_it(region: str) -> str:
    """The command of the program that runs there, else those of all that are known."""
    program = region.removeprefix(f"{MADE} of ")
    return next((text for name, text in _NAME_IT.items() if program.startswith(name)), ", ".join(_NAME_IT.values()))


def _program(space: AddressSpace) -> str:
    """The file that is mapped lowest is the program, on every architecture; "" where that is a library."""
    name = next((module.name for module in space.modules if module.has_file), "")
    return "" if ".so" in name else name
