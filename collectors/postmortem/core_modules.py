"""The mappings of a core file's process, from NT_FILE or from the dynamic loader's list.

They are named as in /proc/PID/maps. Device and inode are synthetic: one number for each path, so that the mappings of
one file belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyprof.collectors.linux.link_map import LinkedObject, find_debug_address, read_linked_objects
from pyprof.collectors.postmortem.core_module_files import CoreFiles
from pyprof.model.modules import Mapping
from pyprof.objfile.core.memory import CoreMemory, format_perms
from pyprof.objfile.core.notes import AT_BASE, AT_ENTRY, AT_PHDR, AT_SYSINFO, AT_SYSINFO_EHDR, CoreNotes
from pyprof.objfile.elf.file import ElfFile
from pyprof.objfile.elf.headers import PAGE, PT_DYNAMIC, PT_INTERP
from pyprof.objfile.elf.memory_image import find_bias_by_headers, read_headers
from pyprof.objfile.mapped_file import is_same_dynamic_table

DEVICE = "core"
UNKNOWN_PERMS = "r-xp"
"""Permissions of a file's mapping for which a core file has no PT_LOAD. Debuggers leave out what the file has, above
all code.
"""

MAX_PARTS = 16
"""Maximum number of memory regions of one library without a file in a core file."""

NO_PROGRAM = "core_without_file_list"
OTHER_PROGRAM = "core_program_differs"


class CoreModules:
    """A reader of a core file's mappings; `oddities` are reasons for counters."""

    def __init__(self, core: ElfFile, notes: CoreNotes, memory: CoreMemory, files: CoreFiles) -> None:
        self._core = core
        self._notes = notes
        self._memory = memory
        self._files = files
        self._inodes: dict[str, int] = {}
        self.oddities: list[str] = []

    def read_mappings(self) -> tuple[Mapping, ...]:
        """Return the mappings of a core file's process, ascending and without overlaps: those of files, and other
        regions without a path.
        """
        files = self._by_notes() if self._notes.files is not None else self._by_link_map()
        kept: list[Mapping] = []
        for mapping in sorted(files, key=lambda m: (m.start, -m.end)):
            if not kept or mapping.start >= kept[-1].end:
                kept.append(mapping)
        return tuple(sorted([*kept, *self._rest(kept)], key=lambda m: m.start))

    def _mapping(self, start: int, end: int, perms: str, offset: int, path: str) -> Mapping:
        inode = self._inodes.setdefault(path, len(self._inodes) + 1)
        return Mapping(start, end, perms, offset, DEVICE, inode, path)

    def _by_notes(self) -> Iterable[Mapping]:
        for file in self._notes.files or ():
            region = self._memory.region_at(file.start)
            yield self._mapping(file.start, file.end, region.perms if region else UNKNOWN_PERMS, file.offset, file.path)

    def _by_link_map(self) -> Iterable[Mapping]:
        """Yield the mappings of a core file without NT_FILE, by the dynamic loader's list."""
        headers, bias = self._program()
        if headers is None:
            self.oddities.append(NO_PROGRAM)
            return
        path = self._files.program_path
        yield from self._of_file(headers, bias, path)
        objects = [o for o in self._objects(headers, bias) if o.bias != bias or o.name]
        base = self._notes.auxv.get(AT_BASE, 0)
        if not objects and base:  # the loader has not built its list yet
            objects.append(LinkedObject(base, self._interpreter(headers), 0))
        for linked in objects:
            if linked.name and not linked.name.startswith(("linux-vdso", "linux-gate")):
                yield from self._of_object(linked)

    def _program(self) -> tuple[ElfFile | None, int]:
        """Return (headers, load bias) of the core file's program, from memory or else from its file."""
        at = self._notes.auxv.get(AT_PHDR, 0)
        page = at & -PAGE
        first = read_headers(self._memory.read(page, PAGE))
        if first is not None:
            bias = find_bias_by_headers(first, at)
            return first, page if bias is None else bias
        named = self._files.program()
        if named is None:
            return None, 0
        elf, believed = named
        bias = find_bias_by_headers(elf, at)
        entry = self._notes.auxv.get(AT_ENTRY)
        if bias is None:
            bias = (entry - elf.entry) if entry is not None else 0
        same = is_same_dynamic_table(elf, bias, self._memory.read)
        if same is False or (same is None and not believed) or (entry not in (None, elf.entry + bias) and not believed):
            self.oddities.append(OTHER_PROGRAM)
            return None, 0
        self._files.add_fallback_file(elf, bias)
        return elf, bias

    def _objects(self, program: ElfFile, bias: int) -> list[LinkedObject]:
        elf_class, order = self._core.elf_class, self._core.order
        for segment in program.segments:
            if segment.type == PT_DYNAMIC:
                read = self._files.read
                at = find_debug_address(read, bias + segment.vaddr, segment.memsz, elf_class, order)
                return list(read_linked_objects(read, at, elf_class, order)) if at else []
        return []

    def _interpreter(self, program: ElfFile) -> str:
        for segment in program.segments:
            if segment.type == PT_INTERP:
                return (
                    bytes(program.source.read(segment.offset, min(segment.filesz, PAGE)))
                    .rstrip(b"\0")
                    .decode("utf-8", "surrogateescape")
                )
        return ""

    def _of_object(self, linked: LinkedObject) -> Iterable[Mapping]:
        """Yield the mappings of a loaded object by its file's segments, or without a file by the core's regions around
        its dynamic table.
        """
        elf = read_headers(self._memory.read(linked.bias, PAGE))
        for candidate in () if elf is not None else self._files.open_path(linked.name):
            dynamic = next((s.vaddr for s in candidate.segments if s.type == PT_DYNAMIC), None)
            if linked.dynamic in (0, None if dynamic is None else dynamic + linked.bias):
                elf = candidate
                break
        if elf is not None:
            yield from self._of_file(elf, linked.bias, linked.name)
            return
        region = self._memory.region_at(linked.dynamic)
        first = self._memory.region_at(linked.bias)
        if region is None or first is None:
            return
        for part in self._memory.ranges_between(first.start, region.end)[:MAX_PARTS]:
            yield self._mapping(part.start, part.end, part.perms, part.start - linked.bias, linked.name)

    def _of_file(self, elf: ElfFile, bias: int, path: str) -> Iterable[Mapping]:
        """Yield the mappings that a loader makes of an ELF file; `elf` must have the file's headers."""
        for load in elf.loads:
            start, end = bias + load.vaddr & -PAGE, bias + load.vaddr + load.filesz + PAGE - 1 & -PAGE
            if 0 <= start < end <= 1 << self._core.elf_class:
                yield self._mapping(start, end, format_perms(load.flags), load.offset & -PAGE, path)

    def _rest(self, files: Sequence[Mapping]) -> Iterable[Mapping]:
        """Yield the parts of the core file's memory regions outside the mappings of files."""
        vdso = self._notes.auxv.get(AT_SYSINFO_EHDR, 0)
        system_call = self._notes.auxv.get(AT_SYSINFO, 0)
        at = 0
        for region in self._memory.regions:
            start = region.start
            while at < len(files) and files[at].end <= start:
                at += 1
            while start < region.end:
                end = min(region.end, files[at].start) if at < len(files) else region.end
                if start < end:
                    name = "[vdso]" if start <= vdso < end or (not vdso and start <= system_call < end) else ""
                    yield Mapping(start, end, region.perms, 0, "00:00", 0, name)
                if at >= len(files) or files[at].end >= region.end:
                    break
                start = files[at].end
                at += 1
