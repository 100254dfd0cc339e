"""What is mapped where: the lines of /proc/PID/maps and the modules behind them.

avma = address in the running process; svma = address stated in the file; rel = avma - base of the module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from pyprof.records import dataclass, field

ReadMemory = Callable[[int, int], bytes]
"""(avma, size in bytes) -> at most size bytes of the target's memory; shorter or empty where unreadable."""


VDSO = "[vdso]"
MAX_MAPPINGS = 1 << 14
"""Maximum number of mappings of an address space. The kernel allows 65,530 by default (vm.max_map_count)."""
MAX_SPREAD = 1 << 30
"""Most bytes by which the segments of one copy of a file stand apart beyond their distance in the file."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps. offset and size in bytes; dev is "major:minor"; path may be ""."""

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
        """Equal for two mappings of one file."""
        return self.dev, self.inode, self.path


def base_name(path: str) -> str:
    """Last part of a target's path; of a Windows path (a drive or two backslashes first) behind its last backslash."""
    if path[1:3] == ":\\" or path.startswith("\\\\"):
        path = path.rsplit("\\", 1)[-1]
    return path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Module:
    """One object file loaded at one place: neighbouring mappings of the same file.

    start, end: the avma span, holes included (text moved to huge pages is anonymous, but still ours).
    path: as the target names it, without " (deleted)"; "[vdso]" and "[anon]" for code without a file.
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
"""(module) -> (our path, did the user name it as this module's?), best first."""


@dataclass(frozen=True, slots=True)
class StatedId:
    """What a crash dump states of a module, whose memory it mostly does not hold.

    debug_id: GUID and age in upper-case hex as Breakpad writes them; build_id: lower-case hex, maybe its first 16 bytes
    only; name: by which symbol files know the module (of a Windows module its PDB's); each "" if not stated.
    elf_machine, elf_class, byteorder: of the dump. entry: of the program, relative to its base, 0 if not stated.
    """

    debug_id: str
    build_id: str
    name: str
    elf_machine: int
    elf_class: int
    byteorder: str
    entry: int = 0


@dataclass(eq=False)
class ProgramImage:
    """One program image of a process; ends at exec. Its memory readers die with it. Compared by identity: a pid that is
    used again is another one. contested: (start, end) of places where two files were mapped one after the other: memory
    that is read there now may be that of either.
    """

    alive: bool = True
    contested: list[tuple[int, int]] = field(default_factory=list)

    def is_alive(self) -> bool:
        return self.alive

    def is_contested(self, avma: int) -> bool:
        return any(start <= avma < end for start, end in self.contested)


@dataclass(frozen=True, eq=False)
class AddressSpace:
    """The modules of one process image at one time; compared by identity.

    id: unique within a recording; SampleBatch.space refers to it. generation: grows with each dlopen, munmap
    or exec of the same pid. root: where the target's file names start ("/proc/PID/root").
    read: reads the target's memory now (b"" once the process is gone). files: None where the target is a process of
    this machine; else where on our disk its files may be. stated: what a crash dump says that its modules are.
    complete: nothing is mapped beside the mappings. image: the one whose space it is; None where no pid is ever used
    again (a core file).
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
        """The same for all spaces of one program image, of no others."""
        return self.image or self.pid

    @property
    def ended(self) -> bool:
        """Is the program image known to be gone?"""
        return self.image is not None and not self.image.alive

    def mapping_at(self, avma: int) -> Mapping | None:
        at = bisect_right(self._starts, avma) - 1
        return self.mappings[at] if at >= 0 and avma < self.mappings[at].end else None

    def module_at(self, avma: int) -> Module | None:
        at = bisect_right(self._module_starts, avma) - 1
        return self.modules[at] if at >= 0 and avma < self.modules[at].end else None


def _module(group: Sequence[Mapping]) -> Module:
    """Of the mappings of one file, in their order."""
    first = group[0]
    path = first.path.removesuffix(" (deleted)")
    return Module(
        first.start, group[-1].end, path or "[anon]", first.dev, first.inode, path != first.path, tuple(group)
    )


def group_modules(mappings: Sequence[Mapping]) -> tuple[Module, ...]:
    """Neighbouring mappings of one file become one module, sorted by start, never overlapping.

    A file offset that does not grow, or a place far from where the first mapping puts it, starts a second copy of
    the file (V8 maps its builtins a second time). Mappings without a file become modules of their own if they are
    executable and not a hole of the module around them; other anonymous memory is no module. The kernel puts the vDSO
    where it likes, also into a hole of the loader (AArch64, whose files have holes of up to 64 KiB): what comes behind
    it there is no module any more.
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
