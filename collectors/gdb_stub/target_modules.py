"""The modules of a GDB stub's target: its mappings over time, and the local files that belong to them.

Mappings are read from the first of these sources that the stub has: the target's /proc/PID/maps, the loader's
list from the stub (libraries-svr4), or the loader's list in the target's memory (r_debug). The loader's lists
are completed by the auxiliary vector, which has the program, the interpreter and the vDSO. Without an
auxiliary vector the segments of --exe are used (bare metal). All of it is hostile input.

Files are searched on this machine, and missing ones are fetched through the stub. Repeated reading of the
mappings takes at most a tenth of the time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator

from pyprof.collectors.gdb_stub.stub_requests import PageCache, RemoteMemory, Stub, parse_xml
from pyprof.collectors.linux.procfs import parse_maps
from pyprof.errors import FormatError, RemoteError
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.address_space import AddressSpace, Mapping, Module, ReadMemory
from pyprof.model.arch import Arch
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.elf_file import ElfFile, build_id_in_notes
from pyprof.objfile.elf_memory_image import find_bias_by_headers, read_headers
from pyprof.objfile.elf_sections import PAGE, PT_DYNAMIC, PT_NOTE
from pyprof.objfile.target_memory_structs import LinkedObject, find_debug_address, read_linked_objects, read_string
from pyprof.problem_counters import Diagnostics

AT_PHDR, AT_BASE, AT_EXECFN, AT_SYSINFO_EHDR = 3, 7, 31, 33
PT_INTERP = 3
DEVICE = "gdb"
MAX_MAPS = 16 << 20
MAX_LIBRARIES = 1 << 14
_VDSO_SIZE = 2 * PAGE


@dataclass(frozen=True, slots=True)
class StubImage:
    """The main program of a GDB stub's target.

    Attributes:
        path: Path in the target's file system, or else of the file of --exe, or else "".
        elf: The file of --exe, None if the user gave none.
    """

    path: str
    elf: ElfFile | None


class RemoteModules:
    """A reader of the mappings of a GDB stub's target. `how` names the source of the last reading for the
    summary, such as /proc/PID/maps or r_debug.
    """

    def __init__(self, stub: Stub, arch: Arch, pid: int, memory: RemoteMemory, program: StubImage) -> None:
        self._stub = stub
        self._arch = arch
        self._pid = pid
        self._memory = memory
        self.program = program
        self._inodes: dict[str, int] = {}
        self._auxv: dict[int, int] | None = None
        self._no_maps = False
        self._bare: tuple[Mapping, ...] | None = None
        self.how = ""

    @property
    def is_process(self) -> bool:
        """True if the GDB stub's target has an auxiliary vector, which means that the stub knows of an operating
        system.
        """
        return bool(self._auxiliary)

    @property
    def is_complete(self) -> bool:
        """True if the last reading found all mappings of the GDB stub's target. A loader's list lacks pages
        of emulators and of the kernel.
        """
        return self.how == "/proc/PID/maps" or not self.is_process

    def program_path(self) -> str:
        """Return the path by which the program was executed (AT_EXECFN), or "" if it is unknown or not absolute."""
        at = self._auxiliary.get(AT_EXECFN, 0)
        path = read_string(self._memory.make_page_cache().read, at) if at else ""
        return path if path.startswith("/") and "\n" not in path else ""

    def read_mappings(self) -> tuple[Mapping, ...]:
        """Return the current mappings of the GDB stub's target, ascending. Its memory must be readable.

        Raises:
            RemoteError: The stub's answers are not usable.
            FormatError: The maps are not valid.
        """
        found = self._by_maps()
        if found:
            self.how = "/proc/PID/maps"
            return found
        if not self._auxiliary.get(AT_PHDR):
            self.how = "segments of --exe"
            if self._bare is None:
                self._bare = self._by_segments()
            return self._bare
        return self._by_loader(self._auxiliary)

    def _by_maps(self) -> tuple[Mapping, ...]:
        if self._no_maps or not self._pid:
            return ()
        text = self._stub.read_whole_file(f"/proc/{self._pid}/maps", MAX_MAPS)
        if not text:
            self._no_maps = True
            return ()
        return parse_maps(text)

    @property
    def _auxiliary(self) -> dict[int, int]:
        if self._auxv is None:
            self._auxv = self._read_auxv()
        return self._auxv

    def _read_auxv(self) -> dict[int, int]:
        """Return the target's auxiliary vector as {AT_*: value}, empty if the target is not a process."""
        data = self._stub.read_object("auxv", limit=1 << 16) if self._stub.has_feature("qXfer:auxv:read") else None
        pair = struct.Struct(self._order + ("QQ" if self._arch.word == 8 else "II"))
        found: dict[int, int] = {}
        for kind, value in pair.iter_unpack((data or b"")[: len(data or b"") // pair.size * pair.size]):
            if kind == 0:
                break
            found.setdefault(kind, value)
        return found

    @property
    def _order(self) -> str:
        return ">" if self._arch.byteorder == "big" else "<"

    def _by_loader(self, auxv: dict[int, int]) -> tuple[Mapping, ...]:
        cache = self._memory.make_page_cache()
        header = auxv[AT_PHDR] & -PAGE
        program = read_headers(cache.read(header, PAGE)) or self.program.elf
        found: list[Mapping] = []
        libraries: list[LinkedObject] = []
        if program is not None:
            bias = find_bias_by_headers(program, auxv[AT_PHDR]) or 0
            found += self._of_file(program, bias, self.program.path)
            libraries = self._libraries(cache, program, bias)
            base = auxv.get(AT_BASE, 0)
            if base and not any(linked.bias == base for linked in libraries):
                libraries.append(LinkedObject(base, _interpreter(program, cache, bias), 0))
        vdso = auxv.get(AT_SYSINFO_EHDR, 0)
        for linked in libraries:
            if linked.bias != vdso and linked.name:
                found += self._of_library(linked, cache)
        if vdso:
            found.append(Mapping(vdso, vdso + _VDSO_SIZE, "r-xp", 0, "00:00", 0, "[vdso]"))
        return _without_overlaps(found)

    def _libraries(self, cache: PageCache, program: ElfFile, bias: int) -> list[LinkedObject]:
        if self._stub.has_feature("qXfer:libraries-svr4:read"):
            text = self._stub.read_object("libraries-svr4")
            if text is not None:
                self.how = "libraries-svr4"
                return list(parse_libraries(text))
        self.how = "r_debug"
        bits = 8 * self._arch.word
        for segment in program.segments:
            if segment.type == PT_DYNAMIC:
                at = find_debug_address(cache.read, bias + segment.vaddr, segment.memsz, bits, self._order)
                if at:
                    return [o for o in read_linked_objects(cache.read, at, bits, self._order) if o.name]
        return []

    def _of_library(self, linked: LinkedObject, cache: PageCache) -> Iterator[Mapping]:
        elf = read_headers(cache.read(linked.bias, PAGE))
        if elf is not None:
            yield from self._of_file(elf, linked.bias, linked.name)

    def _of_file(self, elf: ElfFile, bias: int, path: str) -> Iterator[Mapping]:
        """Yield the mappings that a loader makes of an ELF file, whose headers are in `elf`."""
        inode = self._inode(path)
        for load in elf.loads:
            start, end = bias + load.vaddr & -PAGE, bias + load.vaddr + load.filesz + PAGE - 1 & -PAGE
            if 0 <= start < end <= 1 << 8 * self._arch.word:
                yield Mapping(start, end, _perms(load.flags), load.offset & -PAGE, DEVICE, inode, path)

    def _by_segments(self) -> tuple[Mapping, ...]:
        """Return the mappings of a program on bare metal: each segment is at the address that the file
        states, without page boundaries.
        """
        if self.program.elf is None:
            raise RemoteError("the stub does not name the target's program", "name the program's file: --exe FILE")
        inode = self._inode(self.program.path)
        found = [
            Mapping(s.vaddr, s.vaddr + s.filesz, _perms(s.flags), s.offset, DEVICE, inode, self.program.path)
            for s in self.program.elf.loads
            if s.filesz
        ]
        return _without_overlaps(found)

    def _inode(self, path: str) -> int:
        return self._inodes.setdefault(path, len(self._inodes) + 1)


def _without_overlaps(mappings: list[Mapping]) -> tuple[Mapping, ...]:
    """Return the mappings of the target in ascending order. The part of a mapping that overlaps an earlier one is
    dropped.
    """
    kept: list[Mapping] = []
    for mapping in sorted(mappings, key=lambda m: (m.start, m.end)):
        if kept and mapping.start < kept[-1].end:
            if mapping.end <= kept[-1].end:
                continue
            cut = kept[-1].end - mapping.start
            mapping = Mapping(
                kept[-1].end, mapping.end, mapping.perms, mapping.offset + cut, mapping.dev, mapping.inode, mapping.path
            )
        kept.append(mapping)
    return tuple(kept)


def parse_libraries(text: bytes) -> Iterator[LinkedObject]:
    """Yield the libraries of a libraries-svr4 document.

    Raises:
        RemoteError: The document is not valid.
    """
    found: list[LinkedObject] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag != "library":
            return
        if len(found) >= MAX_LIBRARIES:
            raise RemoteError("the stub's list of libraries has no end")
        name = attributes.get("name", "")
        found.append(LinkedObject(_address(attributes["l_addr"]), name, _address(attributes.get("l_ld", "0"))))

    parse_xml("list of libraries", text, start)
    yield from found


def _address(text: str) -> int:
    value = int(text, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"no address: {text[:40]}")
    return value


def _interpreter(program: ElfFile, cache: PageCache, bias: int) -> str:
    for segment in program.segments:
        if segment.type == PT_INTERP:
            return read_string(cache.read, bias + segment.vaddr)
    return ""


def _perms(flags: int) -> str:
    return "".join(c if flags & bit else "-" for c, bit in (("r", 4), ("w", 2), ("x", 1))) + "p"


def find_program(stub: Stub, pid: int, exe: str | None) -> StubImage:
    """Return the path and the file of the main program of a GDB stub's target. `exe` is the path that the
    user gave by --exe, None if none.

    Raises:
        RemoteError: The file is not readable or no ELF file.
    """
    elf = None
    if exe is not None:
        try:
            elf = ElfFile.open(exe)
        except OSError as error:
            raise RemoteError(f"{exe} cannot be read: {error.strerror}") from None
        except FormatError as error:
            raise RemoteError(f"{exe} is not an ELF file: {error.message}") from None
    path = None
    if stub.has_feature("qXfer:exec-file:read"):
        data = stub.read_object("exec-file", f"{pid:x}" if stub.multiprocess else "", limit=1 << 14)
        path = os.fsdecode(data) if data else None
    if not path or not path.startswith("/"):
        path = os.path.abspath(exe) if exe is not None else ""
    return StubImage(path, elf)


MAX_FETCHED = 128 << 20
"""Maximum size in bytes of a file that is fetched through a stub."""


class RemoteFiles:
    """The finder of local files for the modules of a GDB stub's target.

    Args:
        stub: The stub.
        program: Path of the main program in the target's file system.
        exe: Path of the program's file on this machine (--exe), or "".
        sysroot: The user's --sysroot, or "".
        diagnostics: Counters, among others of fetched files.
    """

    def __init__(self, stub: Stub, program: str, exe: str, sysroot: str, diagnostics: Diagnostics) -> None:
        self._stub = stub
        self._program = program
        self._exe = exe
        self._sysroot = sysroot.rstrip("/")
        self._diagnostics = diagnostics
        self._fetched: dict[str, str] = {}
        self._seen: set[str] = set()
        self._folder = ""

    def find(self, module: Module) -> Iterator[tuple[str, bool]]:
        """Yield candidates for the local file of a module of a GDB stub's target, as (path, trusted); see
        model.address_space.FindFiles.

        The candidates are --exe for the program, the path below --sysroot, the same path on this machine, and
        a fetched file.
        """
        if self._exe and module.path == self._program:
            yield self._exe, True
        for root in dict.fromkeys((self._sysroot, "")):
            yield root + module.path, False
        if module.path in self._fetched:
            yield self._fetched[module.path], False

    def fetch_missing(self, mappings: tuple[Mapping, ...], read: ReadMemory) -> None:
        """Fetch files with code through the GDB stub, if this machine has no such file or one with another
        build ID. Each file is tried only once.

        Args:
            mappings: The target's mappings.
            read: Function that reads the target's memory.
        """
        for mapping in mappings:
            path = mapping.path
            if path in self._seen or not mapping.inode or not path.startswith("/"):
                continue
            if not any(m.executable for m in mappings if m.path == path):
                continue
            self._seen.add(path)
            if not self._is_here(path, _build_id(read(mapping.start, PAGE), read, mapping.start)):
                self._fetch(path)

    def _is_here(self, path: str, build_id: str) -> bool:
        named = [self._exe] if self._exe and path == self._program else []
        for local in dict.fromkeys((*named, self._sysroot + path, path)):
            try:
                elf = ElfFile.open(local)
            except (OSError, FormatError, ValueError):
                continue
            if not build_id or elf.build_id == build_id:
                return True
        return False

    def _fetch(self, path: str) -> None:
        data = self._stub.read_whole_file(path, MAX_FETCHED)
        if not data:
            return
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="pyprof-files-")
        local = os.path.join(self._folder, str(len(self._fetched)))
        with open(local, "xb") as out:
            out.write(data)
        self._fetched[path] = local
        self._diagnostics.count("file_fetched_from_stub")

    def close(self) -> None:
        """Remove the files that were fetched through the GDB stub. Files that are open stay readable."""
        if self._folder:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._folder)
            self._folder = ""


def _build_id(page: bytes, read: ReadMemory, start: int) -> str:
    """Return the build ID of the mapped file whose first page is `page`, read from the target's memory at
    `start`. It is "" if its note is not mapped.
    """
    try:
        elf = ElfFile(BytesSource(page), "[memory]", with_sections=False)
    except FormatError:
        return ""
    first = next((s for s in elf.loads if s.offset == 0), None)
    for segment in elf.segments if first is not None else ():
        if segment.type == PT_NOTE and first is not None:
            notes = read(start + segment.vaddr - first.vaddr, min(segment.filesz, 1 << 14))
            found = build_id_in_notes(memoryview(notes), elf.order)
            if found:
                return found
    return ""


_LOOK_SHARE = 10
_MIN_LOOK_NS, _MAX_LOOK_NS = 20_000_000, 2_000_000_000


class RemoteSpaces:
    """The address space of a GDB stub's target, renewed over time. `current` is the latest one, None before
    the first reading of the mappings.
    """

    def __init__(self, modules: RemoteModules, memory: RemoteMemory, files: RemoteFiles, sysroot: str) -> None:
        self.current: AddressSpace | None = None
        self._modules = modules
        self._memory = memory
        self._files = files
        self._sysroot = sysroot
        self._looked_ns = self._look_ns = 0

    def refresh_space(self) -> AddressSpace:
        """Return the address space of the GDB stub's target. The mappings are read again if the last reading
        is too old. The target must be stopped.

        Raises:
            RemoteError: The stub's answers are not usable.
        """
        if self.current is not None and time.monotonic_ns() < self._look_ns:
            return self.current
        return self._look()

    def find_space(self, pc: int) -> AddressSpace:
        """Return the address space for a sample of the GDB stub's target. The mappings are read again if none
        of them contains pc.
        """
        space = self.current or self._look()
        if space.mapping_at(pc) is None and time.monotonic_ns() - self._looked_ns > _MIN_LOOK_NS:
            space = self._look()
        return space

    def _look(self) -> AddressSpace:
        now = time.monotonic_ns()
        try:
            mappings = self._modules.read_mappings()
        except FormatError as error:
            raise RemoteError(f"the stub's description of the target's mappings is broken: {error.message}") from None
        self._looked_ns = time.monotonic_ns()
        pause = min(max(_LOOK_SHARE * (self._looked_ns - now), _MIN_LOOK_NS), _MAX_LOOK_NS)
        self._look_ns = self._looked_ns + pause
        if self.current is None or mappings != self.current.mappings:
            self.current = self._new(mappings)
        return self.current

    def _new(self, mappings: tuple[Mapping, ...]) -> AddressSpace:
        number = self.current.id + 1 if self.current is not None else 1
        self._memory.forget_pages()
        # pid 0, because the target is no process of this machine
        space = AddressSpace(
            number,
            0,
            number,
            mappings,
            self._memory.read,
            self._sysroot,
            self._files.find,
            complete=self._modules.is_complete,
        )
        self._files.fetch_missing(mappings, self._memory.read)
        for mapping in mappings:
            if mapping.executable and mapping.inode:
                # its first page identifies the file: read it now, not by a stop later
                self._memory.read(mapping.start, 1)
        return space
