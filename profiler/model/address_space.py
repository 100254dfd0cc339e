"""Address spaces: the lines of /proc/PID/maps and the modules behind them.

avma is an address in the running process, svma an address that the file states, rel is avma - base of the module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from pyprof.lazy_dataclasses import dataclass, field

ReadMemory = Callable[[int, int], bytes]
"""Type of a function that reads a target's memory. It takes an address and a size in bytes, and returns at most that
many bytes. The result is shorter, or empty, where memory is unreadable.
"""


VDSO = "[vdso]"
MAX_MAPPINGS = 1 << 14
"""Maximum number of mappings of an address space. The kernel allows 65,530 by default (vm.max_map_count)."""
MAX_SPREAD = 1 << 30
"""Maximum number of bytes by which two segments of a mapped file may be farther apart in memory than in the file.
Segments farther apart belong to two copies of the file.
"""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps. offset and size are in bytes, dev is "major:minor", path may be ""."""

    start: int
    end: int
    perms: str
    offset: int
    dev: str
    inode: int
    path: str

    @property
    def executable(self) -> bool:
        return "x" in self.perms

    @property
    def file(self) -> tuple[str, int, str]:
        """A key (device, inode, path) that is equal for two mappings of one file."""
        return self.dev, self.inode, self.path


def base_name(path: str) -> str:
    """Return the last part of a file's path.

    A Windows path (with a drive or two backslashes first) is split at backslashes.
    """
    if path[1:3] == ":\\" or path.startswith("\\\\"):
        path = path.rsplit("\\", 1)[-1]
    return path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Module:
    """One object file loaded at one place: adjacent mappings of the same file.

    Attributes:
        start: First address (avma). Holes belong to the module: text that was moved to huge pages is anonymous.
        end: End address (avma).
        path: Path as the target sees it, without " (deleted)"; "[vdso]" and "[anon]" for code without a file.
        dev: Device, "major:minor".
        inode: Inode, 0 without a file.
        deleted: True if the file was deleted.
        mappings: The mappings.
    """

    start: int
    end: int
    path: str
    dev: str
    inode: int
    deleted: bool
    mappings: tuple[Mapping, ...]

    @property
    def name(self) -> str:
        return base_name(self.path)

    @property
    def has_file(self) -> bool:
        return self.inode != 0 and self.path.startswith("/")


FindFiles = Callable[[Module], Iterable[tuple[str, bool]]]
"""Type of a function that finds candidates for the file of a Module, best first. Each is (path on this machine, True if
the user named the file for this module).
"""


@dataclass(frozen=True, slots=True)
class StatedId:
    """Facts that a crash dump states about a module, whose memory it usually does not contain.

    Attributes:
        debug_id: GUID and age in upper-case hex as Breakpad writes them, "" if not stated.
        build_id: Lower-case hex, perhaps only the first 16 bytes, "" if not stated.
        name: Name under which symbol files know the module (for a Windows module that of its PDB), "" if not stated.
        elf_machine: The e_machine of the dump's architecture.
        elf_class: 32 or 64, for the dump's architecture.
        byteorder: Byte order of the dump's architecture.
        entry: Entry point of the program relative to its base, 0 if not stated.
        time_stamp: Time stamp of a Windows module, 0 if not stated.
        image_size: Size of a Windows module in memory in bytes, 0 if not stated.
    """

    debug_id: str
    build_id: str
    name: str
    elf_machine: int
    elf_class: int
    byteorder: str
    entry: int = 0
    time_stamp: int = 0
    image_size: int = 0


@dataclass(eq=False)
class ProgramImage:
    """One program image of a process, from exec to exec or exit.

    Its memory readers end with it. It is compared by identity, because a pid may be reused.

    Attributes:
        alive: False after the image has ended.
        contested: (start, end) of places where two files were mapped one after the other. Memory that is read there may
            belong to either file.
    """

    alive: bool = True
    contested: list[tuple[int, int]] = field(default_factory=list)

    def is_alive(self) -> bool:
        return self.alive

    def is_contested(self, avma: int) -> bool:
        return any(start <= avma < end for start, end in self.contested)


@dataclass(frozen=True, eq=False)
class AddressSpace:
    """The modules of one process image at one time. It is compared by identity.

    Attributes:
        id: Unique number in a recording; SampleBatch.space refers to it.
        pid: Pid of the process.
        generation: Grows with each dlopen, munmap or exec of the same pid.
        mappings: The mappings, by address.
        read: Reads the target's current memory (b"" after the process has ended).
        root: Folder where the target's file names start ("/proc/PID/root").
        files: Finds files on this machine, None if the target is a process of this machine.
        stated: Returns the facts that a crash dump states about a module, None if the target is no dump.
        complete: True if `mappings` has all mappings of the process.
        image: The program image, None if no pid can be reused (a core file).
        modules: The modules.
    """

    id: int
    pid: int
    generation: int
    mappings: tuple[Mapping, ...]
    read: ReadMemory
    root: str
    files: FindFiles | None = None
    stated: Callable[[Module], StatedId | None] | None = None
    complete: bool = True
    image: ProgramImage | None = None
    modules: tuple[Module, ...] = field(init=False)
    _starts: list[int] = field(init=False)
    _module_starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        modules = group_modules(self.mappings)
        if len(self.mappings) >= MAX_MAPPINGS:
            object.__setattr__(self, "complete", False)
        object.__setattr__(self, "modules", modules)
        object.__setattr__(self, "_starts", [m.start for m in self.mappings])
        object.__setattr__(self, "_module_starts", [m.start for m in modules])

    @property
    def process(self) -> object:
        """An object that is the same for all address spaces of one program image, and different for other images."""
        return self.image or self.pid

    @property
    def ended(self) -> bool:
        """True if the program image is known to have ended."""
        return self.image is not None and not self.image.alive

    def mapping_at(self, avma: int) -> Mapping | None:
        at = bisect_right(self._starts, avma) - 1
        return self.mappings[at] if at >= 0 and avma < self.mappings[at].end else None

    def module_at(self, avma: int) -> Module | None:
        at = bisect_right(self._module_starts, avma) - 1
        return self.modules[at] if at >= 0 and avma < self.modules[at].end else None


def _module(group: Sequence[Mapping]) -> Module:
    """Return the module that consists of the given mappings of one file, in their order."""
    first = group[0]
    path = first.path.removesuffix(" (deleted)")
    return Module(
        first.start, group[-1].end, path or "[anon]", first.dev, first.inode, path != first.path, tuple(group)
    )


def group_modules(mappings: Sequence[Mapping]) -> tuple[Module, ...]:
    """Group adjacent mappings of one file into modules, sorted by start and without overlaps.

    A second copy of a file begins where the file offset does not grow, or far from the place that the first mapping
    implies (V8 maps its builtins twice). A mapping without a file becomes a separate module if it is executable and not
    a hole of the module around it. Other anonymous memory is no module. The kernel may put the vDSO anywhere, even into
    a hole of the loader (on AArch64, files have holes of up to 64 KiB). The rest of the hole after it does not belong
    to the module.
    """
    modules: list[Module] = []
    group: list[Mapping] = []
    holes: list[Mapping] = []

    def close() -> None:
        if group and any(m.executable for m in [*group, *holes]):
            modules.append(_module(group))
        group.clear()
        holes.clear()

    between: list[Mapping] = []
    for mapping in mappings:
        if mapping.inode:
            same = group and mapping.file == group[0].file
            grows = group and mapping.offset > group[-1].offset
            near = group and abs(mapping.start - mapping.offset - group[0].start + group[0].offset) <= MAX_SPREAD
            if same and grows and near:
                holes.extend(between)
            else:
                close()
                modules.extend(_anonymous(between))
            group.append(mapping)
            between.clear()
        elif mapping.path == VDSO:
            close()
            modules.extend(_anonymous([*between, mapping]))
            between.clear()
        else:
            between.append(mapping)
    close()
    modules.extend(_anonymous(between))
    return tuple(sorted(modules, key=lambda m: m.start))


def _anonymous(mappings: Sequence[Mapping]) -> list[Module]:
    return [Module(m.start, m.end, m.path or "[anon]", m.dev, 0, False, (m,)) for m in mappings if m.executable]
