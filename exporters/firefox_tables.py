"""The tables that all threads of a Firefox profile share (version 60 of the processed format): strings, sources,
libraries, functions, frames, stacks. Each row has the index that its first use gave it, and parents come first.

An address becomes one frame for each function inlined there, outermost first. These frames have the same address and
native symbol, and inlineDepth 0, 1, … A function is one row for all mappings and processes. Addresses count from the
library's first loaded byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from uuid import UUID

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.display_names import UNKNOWN, Level, frame_functions, module_name
from pyprof.model.function_costs import Function
from pyprof.model.prefix_tree import Tree, rewrite
from pyprof.model.profile import Frame, FrameKind, ModuleInfo, Profile

WAITS = (
    *("sleeping", "uninterruptible sleep", "stopped", "stopped by a debugger", "idle", "woken"),
    *("waiting for a processor", "blocked"),
)
"""States of waiting threads in the name of a wait's innermost frame, for example `[sleeping: futex]`."""
OTHER, NATIVE, JIT, INTERPRETED, KERNEL, WAITING, MISSING = range(7)
CATEGORIES = (
    ("Other", "grey", ("Other",)),
    ("Native", "blue", ("Other", "Inlined")),
    ("JIT", "green", ("Other", "Inlined")),
    ("Interpreted", "yellow", ("Other",)),
    ("Kernel", "orange", ("Other",)),
    ("Waiting", "transparent", ("Other", *WAITS)),
    ("Not recorded", "darkgrey", ("Other",)),
)
"""Categories of frames in a Firefox profile: (name, color, subcategories) at the category's index. The profiler defines
these color names for light and dark mode.
"""

_WAIT = re.compile(rf"\[({'|'.join(sorted(WAITS, key=len, reverse=True))})(?:: (.*))?\]", re.DOTALL)
_RUN_TIME = ("[anon", "/memfd:", "/dev/zero", "/anon_hugepage", "//anon")
"""Prefixes of the names of mappings that contain JIT code."""
_ADDRESSES = 1 << 32
"""Upper limit of addresses that Firefox Profiler can store; higher addresses are left out."""
_LIBRARY = 1

FRAME_COLUMNS = (
    *("address", "inlineDepth", "category", "subcategory", "func", "nativeSymbol", "innerWindowID", "line", "column"),
)
FUNC_COLUMNS = ("name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber")
RESOURCE_COLUMNS = ("lib", "name", "host", "type")
SYMBOL_COLUMNS = ("libIndex", "address", "name", "functionSize")

TableRow = tuple[object, ...]


def wait_of(frame: Frame) -> tuple[str, str] | None:
    """Return (state, system call or "") if the frame is the innermost frame of a wait, else None."""
    found = _WAIT.fullmatch(frame.title) if frame.kind is FrameKind.KERNEL else None
    return (found[1], found[2] or "") if found else None


class SharedTables:
    """A builder of the tables that all threads of a Firefox profile share.

    Attributes:
        place: Row of the stack table by node of the profile's tree, -1 for nodes that no sample's stack contains.
    """

    def __init__(self, profile: Profile, options: ExportOptions, leaves: list[int]) -> None:
        self._profile, self._options = profile, options
        self._strings: dict[str, int] = {}
        self._libs: dict[str, int] = {}
        self._lib_rows: list[dict[str, object]] = []
        self._resources: list[TableRow] = []
        self._sources: dict[int, int] = {}
        self._functions: dict[Function, int] = {}
        self._function_rows: list[list[object]] = []
        self._symbols: dict[TableRow, int] = {}
        self._frames: dict[TableRow, int] = {}
        self._tree = Tree()
        rows = [self._rows(frame) for frame in profile.frames]
        frame_of = profile.frame.tolist()
        place = rewrite(profile.parent.tolist(), lambda node: rows[frame_of[node]], self._tree, leaves)
        if 0 in leaves:  # the profiler would not count a stack without frames
            at = self._function(Function("", UNKNOWN, FrameKind.MARKER), Level(UNKNOWN, FrameKind.MARKER, -1), -1)
            place[0] = self._tree.child(0, self._frame((-1, 0, MISSING, 0, at, None, None, None, None)))
        self.place = [node - 1 for node in place]

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def shared(self) -> dict[str, object]:
        """Return the tables that all threads of the Firefox profile share. Callers must have added all their strings
        before.
        """
        parents = self._tree.parent[1:]
        return {
            "stringArray": list(self._strings),
            "sources": {"length": len(self._sources), "id": [None] * len(self._sources), "filename": [*self._sources]},
            "stackTable": {
                "length": len(parents),
                "frame": self._tree.frame[1:],
                "prefix": [parent - 1 if parent else None for parent in parents],
            },
            "frameTable": _table(FRAME_COLUMNS, self._frames),
            "funcTable": _table(FUNC_COLUMNS, self._function_rows),
            "resourceTable": _table(RESOURCE_COLUMNS, self._resources),
            "nativeSymbols": _table(SYMBOL_COLUMNS, self._symbols),
        }

    def libs(self) -> list[dict[str, object]]:
        return self._lib_rows

    def _rows(self, frame: Frame) -> list[int]:
        """Return the rows of a frame in the Firefox profile's frame table, outermost first."""
        code = frame.kind in (FrameKind.NATIVE, FrameKind.INLINE)
        lib = self._lib(frame.module) if code and frame.module >= 0 else -1
        address = frame.rel - (frame.pc - frame.lookup) if lib >= 0 else -1
        address = address if 0 <= address < _ADDRESSES else -1
        category, subcategory = self._category(frame)
        symbol = self._symbol(frame, lib, address)
        found = []
        for depth, (function, level) in enumerate(frame_functions(self._profile, frame, self._options)):
            at = self._function(function, level, lib)
            inlined = depth > 0 and category in (NATIVE, JIT)
            row = (address, depth, category, 1 if inlined else subcategory, at, symbol, None, level.line or None, None)
            found.append(self._frame(row))
        return found

    def _category(self, frame: Frame) -> tuple[int, int]:
        wait = wait_of(frame)
        if wait:
            return WAITING, 1 + WAITS.index(wait[0])
        if frame.kind in (FrameKind.NATIVE, FrameKind.INLINE):
            path = self._profile.modules[frame.module].path if frame.module >= 0 else "[anon]" * bool(frame.lines)
            return (JIT if path.startswith(_RUN_TIME) else NATIVE), 0
        return {FrameKind.INTERPRETER: INTERPRETED, FrameKind.KERNEL: KERNEL}.get(frame.kind, MISSING), 0

    def _frame(self, row: TableRow) -> int:
        return self._frames.setdefault(row, len(self._frames))

    def _symbol(self, frame: Frame, lib: int, address: int) -> int | None:
        """Return the index of the native symbol that contains an address, or None if no symbol table names it."""
        outermost = frame.lines[-1] if frame.lines else None
        if address < 0 or outermost is None or not outermost.system_name or outermost.offset > frame.rel:
            return None
        name = self.string(outermost.function or outermost.system_name)
        row = (lib, min(frame.rel - outermost.offset, address), name, None)
        return self._symbols.setdefault(row, len(self._symbols))

    def _function(self, function: Function, level: Level, lib: int) -> int:
        """Return the row of a function in the Firefox profile's function table. The function's source is the first one
        that is known.
        """
        at = self._functions.setdefault(function, len(self._functions))
        if at == len(self._function_rows):
            self._function_rows.append([self.string(level.name), False, False, lib, None, None, None])
        row = self._function_rows[at]
        if row[4] is None and level.file:
            row[4] = self._sources.setdefault(self.string(level.file), len(self._sources))
        return at

    def _lib(self, index: int) -> int:
        """Return the row of a file's library in the Firefox profile; all its mappings share it. Its resource has the
        same index.
        """
        module = self._profile.modules[index]
        at = self._libs.setdefault(module.build_id or module.path, len(self._libs))
        if at == len(self._lib_rows):
            self._lib_rows.append(_described(module))
            name = self.string(module_name(self._profile, index, self._options))
            self._resources.append((at, name, None, _LIBRARY))
        return at


def _table(columns: tuple[str, ...], rows: Iterable[Iterable[object]]) -> dict[str, object]:
    every = list(rows)
    found = zip(*every, strict=True) if every else [()] * len(columns)
    return {"length": len(every)} | {name: list(column) for name, column in zip(columns, found, strict=True)}


def _described(module: ModuleInfo) -> dict[str, object]:
    names = dict.fromkeys(("name", "debugName"), module.name) | dict.fromkeys(("path", "debugPath"), module.path)
    return {"arch": ""} | names | {"breakpadId": breakpad_id(module.build_id), "codeId": module.build_id or None}


def breakpad_id(build_id: str) -> str:
    """Return the file's id on symbol servers: 16 bytes of the build ID as a GUID and age 0; "" without a build ID."""
    try:
        head = bytes.fromhex(build_id)[:16]
    except ValueError:
        return ""
    return UUID(bytes_le=head.ljust(16, b"\0")).hex.upper() + "0" if head else ""
