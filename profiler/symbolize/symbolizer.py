"""Names for addresses: unique frames in, Frame objects and their modules out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pyprof.diagnostics import Diagnostics
from pyprof.model.modules import AddressSpace, Module
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo
from pyprof.model.stacks import MARKER_SPACE, FrameKey
from pyprof.model.walk import StackEnd, Trust, lookup_pc
from pyprof.objfile.elf import ElfFile
from pyprof.objfile.images import Image, ImageStore
from pyprof.objfile.packages import Packages
from pyprof.symbolize.demangle import demangle
from pyprof.symbolize.elf_symtab import symbol_sources
from pyprof.symbolize.symbols import SymbolTable

MARKERS = {
    StackEnd.RUNNING: "[truncated: walk not finished]",
    StackEnd.NO_RULE: "[truncated: no unwind rule]",
    StackEnd.UNREADABLE: "[truncated: stack not readable]",
    StackEnd.STUCK: "[truncated: stack does not ascend]",
    StackEnd.DEPTH: "[truncated: maximum depth]",
}


@dataclass(frozen=True, slots=True)
class Resolved:
    """frames[i] belongs to keys[i]; Frame.module indexes modules."""

    frames: tuple[Frame, ...]
    modules: tuple[ModuleInfo, ...]


@dataclass(slots=True)
class _Place:
    """A frame on its way: where it is, then what it is called. function: svma of the function's start."""

    key: FrameKey
    lookup: int
    module: Module | None
    image: Image | None
    system_name: str = ""
    function: int = 0


class Symbolizer:
    """Resolves frames at the end of a recording, or of a window of one. Keeps what it read of each file."""

    def __init__(self, images: ImageStore, diagnostics: Diagnostics, spaces: Mapping[int, AddressSpace]) -> None:
        self._images = images
        self._diagnostics = diagnostics
        self._spaces = spaces
        self._tables: dict[ElfFile, tuple[SymbolTable, bool]] = {}
        self._packages = Packages()

    def resolve(self, keys: Sequence[FrameKey]) -> Resolved:
        """Never raises for what a target or a file contains, and drops no frame."""
        places = [self._place(key) for key in keys]
        by_image: dict[Image, list[_Place]] = {}
        for place in places:
            if place.image is not None:
                by_image.setdefault(place.image, []).append(place)
        for image, inside in by_image.items():
            self._name(image, inside)
        shown = demangle(place.system_name for place in places if place.system_name)
        modules = _Modules()
        frames = tuple(self._frame(place, shown, modules) for place in places)
        return Resolved(frames, modules.infos())

    def _place(self, key: FrameKey) -> _Place:
        space_id, pc, exact, _ = key
        lookup = lookup_pc(pc, exact)
        space = None if space_id == MARKER_SPACE else self._spaces.get(space_id)
        module = space.module_at(lookup) if space else None
        image = self._images.image(space, lookup) if space and module else None
        return _Place(key, lookup, module, image)

    def _name(self, image: Image, places: Sequence[_Place]) -> None:
        """Fill in system_name and function."""
        table, complete = self._table(image)
        svmas = np.array([image.svma(place.lookup) & 2**64 - 1 for place in places], np.uint64)
        rows = table.find(svmas).tolist()
        for place, row in zip(places, rows, strict=True):
            if row >= 0:
                place.system_name = table.name(row)
                place.function = int(table.start[row])
        if -1 in rows and not complete and image.module.has_file:
            path = image.module.path
            remedy = self._packages.symbols_remedy(path, image.elf.build_id, image.root)
            self._diagnostics.problem(path, "no symbols: only exported names", remedy)

    def _table(self, image: Image) -> tuple[SymbolTable, bool]:
        if image.elf not in self._tables:
            sources = symbol_sources(image.elf, lambda: image.debug)
            for error in sources.broken:
                self._diagnostics.count("broken symbol table")
                self._diagnostics.problem(image.module.path, f"broken symbol table: {error}")
            self._tables[image.elf] = SymbolTable(sources.rows), sources.complete
        return self._tables[image.elf]

    def _frame(self, place: _Place, shown: Mapping[str, str], modules: _Modules) -> Frame:
        space_id, pc, _, trust = place.key
        if space_id == MARKER_SPACE:
            return marker(pc)
        module, image = place.module, place.image
        if module is None:
            return Frame(FrameKind.NATIVE, pc, place.lookup, pc, -1, (), Trust(trust), f"[unknown]+{pc:#x}")
        rel = image.rel(pc) if image else pc - (module.start - module.mappings[0].offset)
        lines: tuple[Line, ...] = ()
        title = f"{module.name}+{rel:#x}"
        if image is not None and place.system_name:
            title = shown[place.system_name]
            lines = (Line(title, place.system_name, image.svma(pc) - place.function),)
        index = modules.index(module, image.elf.build_id if image else "", lines)
        return Frame(FrameKind.NATIVE, pc, place.lookup, rel, index, lines, Trust(trust), title)


class _Modules:
    """The modules of the frames, in the order in which they come up."""

    def __init__(self) -> None:
        self._index: dict[tuple[int, int, str, str], int] = {}
        self._infos: list[ModuleInfo] = []

    def index(self, module: Module, build_id: str, lines: tuple[Line, ...]) -> int:
        code = [m for m in module.mappings if m.executable] or list(module.mappings)
        key = (code[0].start, code[-1].end, module.path, build_id)
        at = self._index.get(key)
        if at is None:
            at = self._index[key] = len(self._infos)
            self._infos.append(
                ModuleInfo(module.path, build_id, code[0].start, code[-1].end, code[0].offset, False, False)
            )
        info = self._infos[at]
        functions, has_lines = bool(lines), any(line.line for line in lines)
        if functions > info.has_functions or has_lines > info.has_lines:
            self._infos[at] = replace(
                info, has_functions=info.has_functions or functions, has_lines=info.has_lines or has_lines
            )
        return at

    def infos(self) -> tuple[ModuleInfo, ...]:
        return tuple(self._infos)


def marker(end: int) -> Frame:
    """The frame that stands for the missing outer part of a stack."""
    title = MARKERS.get(StackEnd(end), "[truncated]")
    return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, title)
