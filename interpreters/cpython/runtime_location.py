"""The search for CPython's runtime (_PyRuntime) in the program or a library of a process, by symbol or section.

The input is an address space and the symbols of its files. The output is a Located, or None if no module holds a
runtime. Stripped files keep _PyRuntime in .dynsym, because extension modules need it, or at least the section
.PyRuntime (3.10 and later).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyprof.interpreters.detection_symbols import FoundSymbols, Symbol, Wanted
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Module

_NAME = re.compile(r"python(3)\.(\d+)")
_OLD = re.compile(r"^(lib)?python(2|3\.[0-7])(?!\d)")
_RUNTIME = b"_PyRuntime"
_EVALUATOR = b"_PyEval_EvalFrameDefault"
WANTED = Wanted(
    _RUNTIME + b"\0",
    (b"Py_Version\0", b"PyCode_Type\0", _EVALUATOR + b"\0", _EVALUATOR + b".cold"),
    section=".PyRuntime",
)
_OWN = re.compile(r"(lib)?python\d(\.\d+)?[a-z]*(\.so[.\d]*)?$|python$")


@dataclass(frozen=True, slots=True)
class Located:
    """The place of a CPython runtime in a process. Addresses are avmas.

    Attributes:
        module: Module that holds the runtime.
        runtime: Address of _PyRuntime.
        size: Size of the symbol _PyRuntime in bytes, 0 if not known.
        version: Address of Py_Version, 0 if there is none.
        code_type: Address of PyCode_Type, 0 if there is none.
        minor: Minor version from the file's name, -1 if the name has none.
        evaluators: Addresses of _PyEval_EvalFrameDefault and of the parts that compilers split off, as far as symbols
            say.
    """

    module: Module
    runtime: int
    size: int
    version: int
    code_type: int
    minor: int
    evaluators: tuple[int, ...]


def find_old_python(space: AddressSpace) -> str:
    """Return the name of a module that is a CPython before 3.8, by its file name. "" if there is none."""
    return next((m.name for m in space.modules if _OLD.match(m.name)), "")


def is_own(name: str) -> bool:
    """Return True if a module with this file name is CPython's own program or library."""
    return bool(_OWN.match(name))


def list_candidates(space: AddressSpace) -> Iterator[Module]:
    """Yield modules that may contain CPython, likely ones first: those named python, then programs, then all others."""
    files = [m for m in space.modules if m.has_file]
    named = [m for m in files if "python" in m.name]
    first = files[:1] + [m for m in files[1:] if not re.search(r"\.so(\.|$)", m.name)]
    seen: set[int] = set()
    for module in (*named, *first, *files):
        if module.start not in seen:
            seen.add(module.start)
            yield module


def locate_in_file(module: Module, found: FoundSymbols) -> Located | None:
    """Return the location of the CPython runtime that a module holds according to its symbols, or None."""
    first: dict[bytes, Symbol] = {}
    for symbol in found.symbols:
        first.setdefault(symbol.name, symbol)
    if _RUNTIME in first:
        runtime, size = first[_RUNTIME].avma, first[_RUNTIME].size
    elif found.section is not None:
        runtime, size = found.section[0], 0
    else:
        return None
    named = _NAME.search(module.name)
    return Located(
        module=module,
        runtime=runtime,
        size=size,
        version=first[b"Py_Version"].avma if b"Py_Version" in first else 0,
        code_type=first[b"PyCode_Type"].avma if b"PyCode_Type" in first else 0,
        minor=int(named[2]) if named else -1,
        evaluators=tuple(sorted({symbol.avma for symbol in found.symbols if symbol.name.startswith(_EVALUATOR)})),
    )
