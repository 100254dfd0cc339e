"""Creates the named frames of a profile from unique frame keys."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Module
from pyprof.model.interpreter_frames import FunctionPlace
from pyprof.model.jit_code_map import CodeName
from pyprof.model.loss_reason_texts import problem
from pyprof.model.marker_frames import Mark
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo
from pyprof.model.stacks import FrameKey
from pyprof.model.unwind_result import Trust, lookup_pc
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.problem_counters import Diagnostics, Problem
from pyprof.symbolize.demangle import demangle
from pyprof.symbolize.dwarf_attribute_forms import Deadline, OutOfTime
from pyprof.symbolize.dwarf_source_lines import SourcePlace
from pyprof.symbolize.name_cache import FileNames, FrameModules, NameCache, Named
from pyprof.symbolize.symbol_table import MADE, Labels, name_by_start, name_runtime_code, naming_command

if TYPE_CHECKING:
    from pyprof.symbolize.name_cache import SettledFrameCache

InterpreterName = Callable[[FunctionPlace], Line]
"""Function that returns the function, file and line of an interpreter's frame."""


@dataclass(frozen=True, slots=True)
class Described:
    """The description of a piece of JIT code that the process itself has supplied.

    Attributes:
        module: Its module, such as "[jit] gdb".
        image: An object file in memory with its symbols and lines, or None.
        name: A name from another source, used if the image has none.
    """

    module: Module
    image: Image | None = None
    name: CodeName | None = None


class DescribedCode(Protocol):
    """The protocol of the descriptions of JIT code in one recording."""

    def description(self, number: int) -> Described:
        """Return a description of JIT code by its number, a FrameKey.code that is not 0."""
        ...

    def known_description(self, number: int) -> Described | None:
        """Return a description of JIT code if description() has returned it before, else None."""
        ...

    def late_description(self, space: AddressSpace, pc: int) -> Described | None:
        """Return the description of JIT code at an address that was read only after the sample had been unwound, or
        None.

        Args:
            space: The address space.
            pc: Lookup pc in code that is in no file.
        """
        ...


class FunctionStart(Protocol):
    """The protocol of a finder of the start of functions without a symbol."""

    def __call__(self, image: Image, avma: int, known_only: bool) -> int | None:
        """Return the start address in the file of the function at a lookup pc, None if it is unknown.

        Args:
            image: The image at the pc.
            avma: The lookup pc in the process.
            known_only: True to read no file.
        """
        ...


TRAMPOLINE = "<signal handler called>"
"""Name of the code to which a signal handler returns (the signal trampoline), as in gdb. Libraries export no name for
it.
"""
_DIRECT_DEMANGLE_LIMIT_S = 0.05
"""Time limit in seconds for demangling if no file is read (known_only). Names that need a child process then stay
mangled.
"""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The named frames of a profile: frames[i] is the named frame of the i-th requested key, and Frame.module is an
    index into modules.
    """

    frames: tuple[Frame, ...]
    modules: tuple[ModuleInfo, ...]


@dataclass(slots=True)
class _Found:
    """A frame during the lookup of its name: the image that covers it, and what was found so far.

    Attributes:
        key: The frame's key.
        lookup: The frame's lookup pc.
        module: Its module, or None.
        image: Its object file, or None.
        code: The name from a description of run-time generated code, or None.
        system_name: Symbol name, "" if there is none.
        function: Start address of the function in the file, also without a name; None if it is unknown.
        source: Source places, the innermost inlined function first and the function itself last.
        region: Name that stands for all code around it, if its functions are unknown.
        settled: True if no later lookup can find more.
    """

    key: FrameKey
    lookup: int
    module: Module | None
    image: Image | None
    code: CodeName | None = None
    system_name: str = ""
    function: int | None = None
    source: Sequence[SourcePlace] = ()
    region: str = ""
    settled: bool = False


class Symbolizer:
    """The component that names frames at the end of a recording or of a window.

    Attributes:
        out_of_time: True if lines were left out because the time limit was reached.
        unread: True if no file was read (known_only), and a frame has no function that a file may name.
    """

    def __init__(
        self,
        images: ImageStore,
        names: NameCache,
        spaces: Mapping[int, AddressSpace],
        source_budget_s: float | None = 20.0,
        code: DescribedCode | None = None,
        interpreter: InterpreterName | None = None,
        starts: FunctionStart | None = None,
        known_only: bool = False,
        missing_names: Diagnostics | None = None,
        settled: SettledFrameCache | None = None,
    ) -> None:
        """Create a symbolizer from its sources of names.

        Args:
            images: The object files.
            names: Cache of what is read from each file.
            spaces: Address spaces by their id.
            source_budget_s: Limit in seconds of processor time for reading lines and inlined functions in one
                resolve(). None for no limit, 0 to read none.
            code: Descriptions of run-time generated code.
            interpreter: Names interpreter frames.
            starts: Finds the start of functions without a symbol.
            known_only: True to read no file, and to use only names that were read before.
            missing_names: Receives reports of missing names. A caller that repeats the lookup later discards them.
            settled: Cache of frames for which no later lookup finds more. It is used and extended.
        """
        self._images = images
        self._names = names
        self._diagnostics = missing_names or names.diagnostics
        self.out_of_time = self.unread = False
        self._spaces = spaces
        self._source_budget_s = source_budget_s
        self._code = code
        self._interpreter = interpreter
        self._starts = starts
        self._known_only = known_only
        self._settled = settled

    def resolve(self, keys: Sequence[FrameKey]) -> Resolved:
        """Return the named frames. No content of a target or file makes it raise, and no frame is dropped."""
        settled = self._settled.settled_among(keys) if self._settled is not None else {}
        self._names.count_lookups(len(settled), 0)
        found, shown = self._looked_up([key for key in keys if key not in settled] if settled else keys)
        for item in found:
            if item.code is not None:
                self._name_code(item, item.code)
        self._name_runtime_code(found)
        names = {item.system_name for item in found} | {place.name for item in found for place in item.source}
        rest = sorted(names - shown.keys() - {""})
        shown |= demangle(rest, _DIRECT_DEMANGLE_LIMIT_S if self._known_only else None)
        modules = FrameModules(Labels((i.module, _build_id(i)) for i in found if i.module and not i.system_name))
        items = iter(found)
        frames = tuple(
            settled[key].convert_modules(modules) if key in settled else self._named(next(items), shown, modules)
            for key in keys
        )
        self._names.trim()
        return Resolved(frames, modules.module_infos())

    def look_up(self, keys: Sequence[FrameKey]) -> None:
        """Read the names of frames from files into the cache of names, so that resolve() finds them later."""
        for item in self._looked_up(keys)[0]:
            for place in item.source:
                self._place(place, item.image)
        self._names.trim()

    def read_symbols(self, keys: Sequence[FrameKey]) -> None:
        """Read the symbol tables of the files of frames into the cache of names, those of small files first.

        Symbol names are not demangled, because hostile ones take long.
        """
        images = {image for key in keys if (image := self._find(key).image) is not None}
        for image in sorted(images, key=lambda image: image.module.end - image.module.start):
            self._names.file_names(image)

    def _looked_up(self, keys: Sequence[FrameKey]) -> tuple[list[_Found], dict[str, str]]:
        """Look up the names of frames in their files. Return the frames, and the text to show for each symbol name.

        Args:
            keys: Keys of the frames.
        """
        find = self._find_seen if self._known_only else self._find
        found = [find(key) if key.kind == FrameKind.NATIVE else _Found(key, 0, None, None) for key in keys]
        by_image: dict[Image, list[_Found]] = {}
        for item in found:
            if item.image is not None:
                by_image.setdefault(item.image, []).append(item)
        return found, self._name_as_seen(by_image) if self._known_only else self._name_all(by_image)

    def _name_all(self, by_image: Mapping[Image, Sequence[_Found]]) -> dict[str, str]:
        """Name the frames in all object files, and return the text for each symbol name.

        Files with many frames for their size come first, because the time may not suffice for all.
        """
        deadline = Deadline(self._source_budget_s)
        shown: dict[str, str] = {}
        order = sorted(by_image, key=lambda image: (image.module.end - image.module.start) / len(by_image[image]))
        files = {
            image: self._names.file_names(image) for image in order
        }  # symbols first, because lines may use up the time
        for image in order:
            file, inside = files[image], by_image[image]
            self._name(file, image, inside, deadline)
            self._name_trampolines(image, inside)
            self._find_starts(image, inside)
            wanted = {item.system_name for item in inside} | {place.name for item in inside for place in item.source}
            known = file.demangle_names(wanted - {"", TRAMPOLINE})
            shown.update((name, known[name]) for name in wanted if name in known)
        for image, inside in by_image.items():  # last: reading a package manager's lists takes long
            self._report_missing(files[image], image, inside)
        return shown

    def _name_as_seen(self, by_image: Mapping[Image, Sequence[_Found]]) -> dict[str, str]:
        """Name frames only by names that are already in the cache, without reading any file. Return the text to show
        for each symbol name.
        """
        shown: dict[str, str] = {}
        for image, inside in by_image.items():
            path = image.module.path
            file = self._names.known_file_names(image)
            if file is None:
                self.unread = True
                self._find_starts(image, inside)
                self._diagnostics.count("name_lookup_timeout")
                self._diagnostics.problem(path, problem("no_time_for_names", path=shlex.quote(path)))
                continue
            if self._fill_in(file, image, inside) and file.may_have_lines:
                self._out_of_time(path, problem("no_time_for_lines", path=shlex.quote(path)))
            self._find_starts(image, inside)
            self.unread |= any(item.function is None for item in inside)
            shown.update(file.shown)
        return shown

    def _find_seen(self, key: FrameKey) -> _Found:
        lookup = lookup_pc(key.pc, key.exact)
        if key.code and self._code is not None and (known := self._code.known_description(key.code)) is not None:
            return _Found(key, lookup, known.module, known.image, known.name)
        space = self._spaces.get(key.space)
        module = space.module_at(lookup) if space else None
        image = self._images.seen_image(space, lookup) if space and module else None
        self.unread |= image is None and module is not None and module.has_file
        return _Found(key, lookup, module, image)

    def _find(self, key: FrameKey) -> _Found:
        lookup = lookup_pc(key.pc, key.exact)
        if key.code:
            known = self._code.description(key.code) if self._code else None
            return (
                _Found(key, lookup, known.module, known.image, known.name) if known else _Found(key, lookup, None, None)
            )
        space = self._spaces.get(key.space)
        module = space.module_at(lookup) if space else None
        image = self._images.image(space, lookup) if space and module else None
        if space and module and image is None and self._code:
            late = self._code.late_description(space, lookup)
            if late is not None:
                return _Found(key, lookup, late.module, late.image, late.name)
        if image is not None:
            module = image.module  # code that Wine copied into anonymous memory belongs to its file
        return _Found(key, lookup, module, image)

    def _name_code(self, item: _Found, code: CodeName) -> None:
        """Name a frame by the description of its JIT code, if the object file in memory has no name for it."""
        if not item.system_name:
            item.system_name = code.name
            item.function = code.start
            known = code.places.get(item.lookup) if code.places is not None else None
            if known:
                item.source = [SourcePlace(*place) for place in known]
                item.system_name = item.source[-1].name
            elif code.name and not item.source:
                file, line = code.line_at(item.lookup) or (None, 0)
                item.source = [SourcePlace(code.name, file, line)]

    def _name(self, file: FileNames, image: Image, inside: Sequence[_Found], deadline: Deadline) -> None:
        """Set the names of a file's frames (system_name, function and source) from earlier results or from the file."""
        self._report_broken(file, image)
        fresh = self._fill_in(file, image, inside)
        self._names.count_lookups(len(inside) - len(fresh), len(fresh))
        if not fresh:
            return
        readers = [self._add_source, self._add_go_names]
        if file.go_names is not None and file.go_names.has_inlined_calls:
            readers.reverse()  # a function costs less than a millisecond, a unit of DWARF a second
        whole = min(read(file, image, fresh, deadline) for read in readers)
        if self._add_symbol_file(file, image, fresh, deadline):
            for item in fresh[:whole]:
                file.found[image.svma(item.lookup)] = Named(item.system_name, item.function, tuple(item.source))

    def _fill_in(self, file: FileNames, image: Image, inside: Sequence[_Found]) -> list[_Found]:
        """Set the names of frames in one file: from earlier lookups if possible, otherwise from the symbol table.
        Return the frames for which there was no earlier lookup.
        """
        fresh: list[_Found] = []
        for item in inside:
            known = file.found.get(image.svma(item.lookup))
            if known is None:
                fresh.append(item)
            else:
                item.system_name, item.function, item.source = known.system_name, known.function, known.source
                item.settled = not self._known_only
        svmas = np.array([image.svma(item.lookup) & 2**64 - 1 for item in fresh], np.uint64)
        for item, row in zip(fresh, file.table.find(svmas).tolist(), strict=True):
            if row >= 0:
                item.system_name = file.table.name(row)
                item.function = int(file.table.start[row])
        return fresh

    def _name_runtime_code(self, found: Iterable[_Found]) -> None:
        """Name code that no file contains and no source describes by the region of memory in which it lies."""
        for item in found:
            if item.module is not None and item.image is None and item.code is None and not item.system_name:
                item.region = name_runtime_code(self._spaces[item.key.space], item.module)
                if item.region.startswith(MADE):
                    self._diagnostics.problem(
                        item.module.path, problem("code_without_names", command=naming_command(item.region))
                    )

    def _name_trampolines(self, image: Image, inside: Sequence[_Found]) -> None:
        """Name frames in signal trampolines, which are recognized by their code."""
        file = image.file
        arch = file.arch

        def read(avma: int, size: int) -> bytes:
            return bytes(file.at_svma(image.svma(avma), size))

        for item in inside:
            if arch and not item.system_name and arch.signals.trampoline_at(read, item.key.pc, item.key.exact):
                item.system_name = TRAMPOLINE

    def _add_source(self, file: FileNames, image: Image, inside: Sequence[_Found], deadline: Deadline) -> int:
        """Set the source places of frames that have none, and names that only DWARF has.

        Returns:
            The number of frames that were finished before the time limit.
        """
        if self._source_budget_s == 0:
            return 0
        lines = None if all(item.source for item in inside) else file.lines
        if lines is None:
            return len(inside)
        path, whole = image.module.path, 0
        try:
            for item in inside:
                item.source = item.source or lines.find(image.svma(item.lookup), deadline)
                if item.source and not item.system_name:
                    item.system_name = item.source[-1].name
                whole += 1
        except OutOfTime:
            self._lines_take_long(path)
        for error in lines.broken:
            self._names.diagnostics.count("dwarf_broken")
            self._names.diagnostics.problem(path, problem("debug_information_broken", where=error))
        lines.broken.clear()
        if lines.split:
            self._diagnostics.problem(path, problem("debug_information_split"))
        return whole

    def _add_go_names(self, file: FileNames, image: Image, inside: Sequence[_Found], deadline: Deadline) -> int:
        """Set the names and lines of frames of a Go program that have none.

        Exported names do not cover all functions.

        Returns:
            The number of frames that were finished before the time limit.
        """
        names = file.go_names
        if names is None:
            return len(inside)
        whole, has_time = 0, self._source_budget_s != 0
        for item in inside:
            if not item.source or not item.system_name or not file.complete:
                has_time = has_time and self._is_in_time(deadline, image.module.path)
                place = names.find(image.svma(item.lookup), has_time)
                if place is not None:
                    if not item.system_name or not file.complete:
                        item.system_name, item.function = place.name, place.start
                    item.source = item.source or place.places
            whole += has_time
        self._report_broken(file, image)
        return whole

    def _is_in_time(self, deadline: Deadline, path: str) -> bool:
        try:
            deadline.check()
        except OutOfTime:
            self._lines_take_long(path)
            return False
        return True

    def _report_broken(self, file: FileNames, image: Image) -> None:
        for text in file.broken:
            self._names.diagnostics.count("symbol_table_not_used")
            self._names.diagnostics.problem(image.module.path, problem("symbol_table_broken", where=text))
        file.broken.clear()

    def _add_symbol_file(self, file: FileNames, image: Image, inside: Sequence[_Found], deadline: Deadline) -> bool:
        """Set names of frames that the user's Breakpad symbol file has and the object file does not.

        Exported names do not cover all functions.

        Returns:
            True if the time sufficed for all lines.
        """
        names = file.symbol_file
        if names is None:
            return True
        with_lines = True
        for item in inside:
            with_lines = with_lines and self._is_in_time(deadline, image.module.path)
            place = names.find(image.rel(item.lookup), with_lines)
            if place is None:
                continue
            if not item.system_name or (place.sized and not file.complete):
                item.system_name, item.function = place.name, place.start + image.file.min_vaddr
            item.source = item.source or place.places
        return with_lines

    def _lines_take_long(self, path: str) -> None:
        seconds = f"{self._source_budget_s:g}"
        self._out_of_time(path, problem("lines_take_long", seconds=seconds, path=shlex.quote(path)))

    def _out_of_time(self, path: str, lacking: Problem) -> None:
        self.out_of_time = True
        self._diagnostics.count("line_lookup_timeout")
        self._diagnostics.problem(path, lacking)

    def _report_missing(self, file: FileNames, image: Image, inside: Sequence[_Found]) -> None:
        here = image.module.has_file and image.file.is_here
        if not file.complete and here and not all(item.system_name for item in inside):
            path = image.module.path
            hint = ""
            if self._names.suggests_packages:
                hint = self._names.packages(image.root).find_hint_for_symbols(path, image.file.build_id, image.root)
            self._diagnostics.problem(path, problem("exported_names_only", command=hint))

    def _find_starts(self, image: Image, inside: Sequence[_Found]) -> None:
        """Find the start addresses of functions that have no name."""
        for item in inside:
            if self._starts and not item.system_name:
                item.function = self._starts(image, item.lookup, self._known_only)

    def _place(self, place: SourcePlace, image: Image | None) -> tuple[str | None, int]:
        """Return file and line of a source place.

        For code that Cython translated, they are those of the Cython source.
        """
        if self._known_only or not place.file or not place.line:
            return place.file, place.line
        cython = self._names.cython(image.root, image.rights) if image else self._names.cython("", None)
        return cython.find(place.file, place.line) or (place.file, place.line)

    def _named(self, item: _Found, shown: Mapping[str, str], modules: FrameModules) -> Frame:
        frame = self._frame(item, shown, modules)
        if self._settled is not None and item.settled and item.system_name and item.module is not None:
            self._settled.add_frame(item.key, frame, item.module, _build_id(item))
        return frame

    def _frame(self, item: _Found, shown: Mapping[str, str], modules: FrameModules) -> Frame:
        kind, trust, _, _, pc, _, place, mark, blocked = item.key
        if mark is not None:
            return make_marker_frame(mark)
        if kind == FrameKind.KERNEL:
            return Frame(kind, pc, pc, 0, -1, (), Trust(trust), self._names.kernel.frame_title(blocked or pc))
        if place is not None:
            line = self._interpreter(place) if self._interpreter else Line("[unknown]", "")
            return Frame(kind, 0, 0, 0, -1, (line,), Trust(trust), line.function, place=place)
        module, image = item.module, item.image
        if module is None:
            return Frame(FrameKind.NATIVE, pc, item.lookup, pc, -1, (), Trust(trust), f"[unknown]+{pc:#x}")
        offset = module.mappings[0].offset if module.mappings else 0
        rel = image.rel(pc) if image else pc - module.start + offset
        svma = image.svma(pc) if image else pc
        offset = 0 if item.function is None else svma - item.function
        label = modules.labels.module_label(module, _build_id(item))
        title = shown[item.system_name] if item.system_name else f"{label}+{rel:#x}"
        lines: tuple[Line, ...] = ()
        if item.system_name:
            *inlined, outer = item.source or (SourcePlace("", None, 0),)
            lines = (
                *(Line(shown.get(p.name, "[inlined]"), p.name, 0, *self._place(p, image)) for p in inlined),
                Line(title, item.system_name, offset, *self._place(outer, image)),
            )
        elif item.function is not None:
            title = name_by_start(label, rel - offset)
            lines = (Line(title, "", offset),)
        elif item.region:
            title = item.region
            lines = (Line(title, "", rel),)
        index = modules.module_index(module, _build_id(item), lines)
        return Frame(FrameKind.NATIVE, pc, item.lookup, rel, index, lines, Trust(trust), title)


def _build_id(item: _Found) -> str:
    return item.image.file.build_id if item.image else ""


def make_marker_frame(mark: Mark) -> Frame:
    """Return the frame that stands for the missing part of a stack."""
    return Frame(FrameKind.MARKER, 0, 0, 0, -1, (), Trust.CONTEXT, mark.title, mark)
