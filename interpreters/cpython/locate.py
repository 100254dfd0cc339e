"""Where a process has its CPython: _PyRuntime, found by symbol or section in the program or a library.

In: an address space and its images. Out: Located, or None where no module holds a runtime. Stripped files keep
_PyRuntime in .dynsym (extension modules need it), or at least the section .PyRuntime (3.10 and later).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyprof.interpreters.symbols import defined_symbols
from pyprof.model.modules import AddressSpace, Module
from pyprof.objfile.images import Image
from pyprof.records import dataclass

_NAME = re.compile(r"python(3)\.(\d+)")
_OLD = re.compile(r"^(lib)?python(2|3\.[0-7])(?!\d)")
_RUNTIME = b"_PyRuntime"
_EVALUATOR = b"_PyEval_EvalFrameDefault"
_OTHERS = (b"Py_Version\0", b"PyCode_Type\0", _EVALUATOR + b"\0", _EVALUATOR + b".cold")
_OWN = re.compile(r"(lib)?python\d(\.\d+)?[a-z]*(\.so[.\d]*)?$|python$")


@dataclass(frozen=True, slots=True)
class Located:
    """avma of _PyRuntime. size: of its symbol, 0 if not known. version, code_type: of Py_Version and of PyCode_Type, 0
    if there is none.

    minor: as the file's name says, -1 if it does not. evaluators: avma of _PyEval_EvalFrameDefault and of
    the parts that compilers split off it, as far as symbols say.
    """

    module: Module
    image: Image
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


def in_image(module: Module, image: Image) -> Located | None:
    """What one module holds. Raises FormatError."""
    file = image.file
    found: dict[bytes, tuple[int, int]] = {}
    evaluators: set[int] = set()
    for symbol in defined_symbols(file, _RUNTIME + b"\0", _OTHERS):
        if symbol.name.startswith(_EVALUATOR):
            evaluators.add(symbol.value)
        else:
            found.setdefault(symbol.name, (symbol.value, symbol.size))
    section = file.sections.get(".PyRuntime")
    if _RUNTIME not in found:
        if section is None:
            return None
        found[_RUNTIME] = (section.addr, 0)
    value, size = found[_RUNTIME]
    named = _NAME.search(module.name)
    return Located(
        module=module,
        image=image,
        runtime=value + image.bias,
        size=size,
        version=found[b"Py_Version"][0] + image.bias if b"Py_Version" in found else 0,
        code_type=found[b"PyCode_Type"][0] + image.bias if b"PyCode_Type" in found else 0,
        minor=int(named[2]) if named else -1,
        evaluators=tuple(value + image.bias for value in sorted(evaluators)),
    )
