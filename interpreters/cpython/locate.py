"""Where a process has its CPython: _PyRuntime, found by symbol or section in the program or a library.

In: an address space and what the files of its modules have. Out: Located, or None where no module holds a runtime.
Stripped files keep _PyRuntime in .dynsym (extension modules need it), or at least the section .PyRuntime (3.10 and
later).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyprof.interpreters.symbols import FoundSymbols, Symbol, Wanted
from pyprof.model.modules import AddressSpace, Module
from pyprof.records import dataclass

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
    """avma of _PyRuntime. size: of its symbol, 0 if not known. version, code_type: of Py_Version and of PyCode_Type, 0
    if there is none.

    minor: as the file's name says, -1 if it does not. evaluators: avma of _PyEval_EvalFrameDefault and of
    the parts that compilers split off it, as far as symbols say.
    """

    module: Module
    runtime: int
    size: int
    version: int
    code_type: int
    minor: int
    evaluators: tuple[int, ...]


def too_old(space: AddressSpace) -> str:
    """The name of a module that is a CPython without a _PyRuntime of ours, "" if there is none."""
    return next((m.name for m in space.modules if _OLD.match(m.name)), "")


def is_own(name: str) -> bool:
    """Is a module of this file name the interpreter's program or library?"""
    return bool(_OWN.match(name))


def candidates(space: AddressSpace) -> Iterator[Module]:
    """Likely modules first: the program, then what is called python, then all others."""
    files = [m for m in space.modules if m.has_file]
    named = [m for m in files if "python" in m.name]
    first = files[:1] + [m for m in files[1:] if not re.search(r"\.so(\.|$)", m.name)]
    seen: set[int] = set()
    for module in (*named, *first, *files):
        if module.start not in seen:
            seen.add(module.start)
            yield module


def in_file(module: Module, found: FoundSymbols) -> Located | None:
    """What one module holds, going by its symbols."""
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
