"""Samples out of a core file: one of each thread, as it was when the process died.

The stack of a thread is copied from its sp up; where the walk needs more (a longer stack, the stack that a signal
handler on its own stack interrupted), the thread comes again in the next batch with more. Nothing is read whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from pyprof.collectors.base import CollectorStats, Feedback
from pyprof.collectors.core_files import CoreFiles, check_program
from pyprof.collectors.core_modules import CoreModules
from pyprof.diagnostics import Diagnostics
from pyprof.errors import PyprofError, UnsupportedArchitecture, UsageError
from pyprof.model.arch import Arch, find_arch
from pyprof.model.modules import AddressSpace
from pyprof.model.pauses import Pauses
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import Piece, SampleBatch, SampleKind, StackSlab
from pyprof.objfile.core_memory import CoreMemory
from pyprof.objfile.core_notes import AT_ENTRY, AT_PHDR, CoreNotes, CoreThread, read_notes, register_word
from pyprof.objfile.elf import ElfFile

CORE_SIGNALS = frozenset({3, 4, 5, 6, 7, 8, 11, 24, 25, 31})
"""Signals that leave a core (signal(7)): QUIT ILL TRAP ABRT BUS FPE SEGV XCPU XFSZ SYS."""

RED_ZONE = 512
"""Bytes below sp that are copied too: leaf functions of some ABIs keep registers there (ppc64le: 288)."""

MAX_BATCH = 64 << 20
MAX_ROUNDS = 16
GROWTH = 4
FIRST_PIECE = 1 << 14
BELOW = 1 << 20
"""Bytes below the first word that was missed of another stack: where its frame saved its registers."""

MAX_COPY = 256 << 20
MAX_TOTAL = 1 << 30
"""Most bytes of stack read of one core, all threads together."""

LEAST_COPY = 1 << 14


@dataclass(slots=True)
class _Thread:
    """A thread and how much of memory it is given. sp, pc: for the copy."""

    tid: int
    signal: int
    row: np.ndarray[tuple[int], np.dtype[np.uint64]]
    size: int
    pieces: dict[int, int] = field(default_factory=dict)


class CoreFileCollector:
    """Collector of one core file. path, exe, sysroot: as the user gave them ("" for none). copy: first bytes of stack.

    Raises FormatError, UnsupportedArchitecture, PyprofError (no such file), UsageError (exe cannot be the program).
    """

    def __init__(self, path: str, exe: str, sysroot: str, copy: int, diagnostics: Diagnostics) -> None:
        try:
            core = ElfFile.open(path)
        except OSError as error:
            raise PyprofError(f"{path}: {error.strerror}") from error
        self._notes: CoreNotes = read_notes(core)
        arch = find_arch(core.machine, core.elf_class, core.byteorder)
        if arch is None:
            raise UnsupportedArchitecture(
                f"{path}: cores of machine {core.machine} ({core.elf_class} bits) not supported"
            )
        wrong = check_program(exe, core) if exe else ""
        if wrong:
            raise UsageError(f"--exe {exe}: {wrong}")
        self.arch: Arch = _with_pac_mask(arch, self._notes)
        self._diagnostics = diagnostics
        self._tolerated: Counter[str] = Counter(self._notes.oddities)
        self._memory = CoreMemory(core)
        self._files = CoreFiles(core, self._notes, self._memory, exe, sysroot)
        self._left = MAX_TOTAL
        share = max(MAX_TOTAL // 2 // max(len(self._notes.threads), 1), LEAST_COPY)
        self._threads, self.unknown = self._take_threads(core, min(copy, share))
        self.pid = self._process_id()
        self.space = self._make_space(core, sysroot)
        self._wanted: list[_Thread] = []
        self._stopped = False

    def _take_threads(self, core: ElfFile, copy: int) -> tuple[list[_Thread], frozenset[int]]:
        arch, word = self.arch, register_word(core)
        threads: list[_Thread] = []
        seen: set[int] = set()
        unknown: set[int] = set()
        slots = {column: slot for column, slot in enumerate(arch.prstatus) if slot >= 0}
        for thread in self._notes.threads:
            words = np.frombuffer(thread.registers, np.dtype(f"{core.order}u{word}"))
            if max(slots.values()) >= len(words):
                self._tolerated["thread without its registers"] += 1
                continue
            row = np.zeros(len(arch.registers), np.uint64)
            row[list(slots)] = words[list(slots.values())]
            row[arch.pc] &= np.uint64(arch.pc_mask)
            unknown |= _fp_registers(arch, core, thread, row)
            tid = thread.tid
            if tid <= 0 or tid in seen:
                self._tolerated["thread without an id of its own"] += 1
                tid = next(n for n in range(1, len(seen) + 2) if n not in seen)
            seen.add(tid)
            threads.append(_Thread(tid, thread.signal, row, copy))
        return threads, frozenset(unknown)

    def _process_id(self) -> int:
        process = self._notes.process
        if process is not None and process.pid > 0:
            return process.pid
        return self._threads[0].tid if self._threads else 0

    def _make_space(self, core: ElfFile, sysroot: str) -> AddressSpace:
        modules = CoreModules(core, self._notes, self._memory, self._files)
        mappings = modules.mappings()
        self._tolerated.update(modules.oddities)
        if self._memory.lost:
            self._tolerated["core file is cut off: bytes missing"] += self._memory.lost
        self._files.space = AddressSpace(0, self.pid, 0, mappings, self._memory.read, sysroot, self._files.find)
        return replace(self._files.space, read=self._files.read)

    @property
    def exe(self) -> str:
        """The program's path as the core tells it."""
        for kind in (AT_PHDR, AT_ENTRY):
            mapping = self.space.mapping_at(self._notes.auxv.get(kind, 0))
            if mapping is not None and mapping.path.startswith("/"):
                return mapping.path.removesuffix(" (deleted)")
        return self._files.program_path

    @property
    def crashed(self) -> tuple[int, int, int | None] | None:
        """(signal, its si_code or 0, the address that it is about) that killed the process; None if none did: a
        debugger wrote the core of a living one.
        """
        told = self._notes.signal
        number = (self._threads[0].signal if self._threads else 0) or (told.number if told else 0)
        if number not in CORE_SIGNALS:
            return None
        if told is None or told.number != number:
            return number, 0, None
        return number, told.code, told.address

    @property
    def order(self) -> list[int]:
        """Tids in the core's order: the thread that got the signal first."""
        return [thread.tid for thread in self._threads]

    def batches(self) -> Iterator[SampleBatch]:
        """All threads, then those again whose walk needed more than they were given."""
        for oddity, times in self._tolerated.items():
            self._diagnostics.count(oddity, times)
        wanted = self._threads
        for _ in range(MAX_ROUNDS):
            self._wanted = []
            at = 0
            while at < len(wanted):
                batch, at = self._batch(wanted, at)
                yield batch
            wanted = self._wanted
            if not wanted or self._stopped:
                return

    def _batch(self, threads: list[_Thread], at: int) -> tuple[SampleBatch, int]:
        """A batch from the threads from `at` on, and where the next one begins."""
        lanes: list[_Thread] = []
        chunks: list[bytes] = []
        columns: list[tuple[int, int, int]] = []  # base, offset, size
        pieces: dict[int, tuple[Piece, ...]] = {}
        used = extra = 0
        while at < len(threads) and (not lanes or used + extra < MAX_BATCH):
            thread = threads[at]
            start, data = self._stack(thread)
            columns.append((start, used, len(data)))
            chunks += data, bytes(-len(data) % 8)
            used += (len(data) + 7) & ~7
            if thread.pieces:
                found = tuple(Piece(avma, self.space.read(avma, size)) for avma, size in thread.pieces.items())
                pieces[len(lanes)] = found
                extra += sum(len(piece.data) for piece in found)
            lanes.append(thread)
            at += 1
        self._left -= used + extra
        n = len(lanes)
        batch = SampleBatch(
            arch=self.arch,
            kind=np.full(n, SampleKind.STOPPED, np.uint8),
            time_ns=np.zeros(n, np.int64),
            tid=np.array([thread.tid for thread in lanes], np.int32),
            pid=np.full(n, self.pid, np.int32),
            space=np.full(n, self.space.id, np.int32),
            cpu=np.full(n, -1, np.int32),
            weight=np.ones(n, np.int64),
            regs=np.array([thread.row for thread in lanes], np.uint64).reshape(n, len(self.arch.registers)),
            stack=StackSlab(
                data=np.frombuffer(b"".join(chunks), np.uint8),
                base=np.array([base for base, _, _ in columns], np.uint64),
                offset=np.array([offset for _, offset, _ in columns], np.int64),
                size=np.array([size for _, _, size in columns], np.int64),
                pieces=pieces,
            ),
            spaces={self.space.id: self.space},
            unknown=self.unknown,
        )
        return batch, at

    def _stack(self, thread: _Thread) -> tuple[int, bytes]:
        """(avma, bytes) of the thread's stack, the red zone included where it is readable."""
        sp = int(thread.row[self.arch.sp]) & -16
        for start in (max(sp - RED_ZONE, 0), sp):
            data = self._memory.read(start, thread.size + sp - start)
            if start + len(data) > sp:
                return start, data
        return sp, b""

    def learn(self, feedback: Feedback) -> None:
        """A thread that needed a word which the core has comes again with it."""
        by_tid = {thread.tid: thread for thread in self._threads}
        for tid, missing in zip(feedback.batch.tid.tolist(), feedback.missing.tolist(), strict=True):
            thread = by_tid[tid]
            if not missing or self._left < 0 or len(self.space.read(missing, self.arch.word)) < self.arch.word:
                continue
            sp = int(thread.row[self.arch.sp])
            if sp <= missing < sp + GROWTH * GROWTH * thread.size and thread.size < MAX_COPY:
                thread.size = min(max(GROWTH * thread.size, missing - sp + thread.size), MAX_COPY)
            else:
                region = self._memory.region_at(missing)
                start = max(missing - BELOW, region.start if region else missing) & -16
                size = missing - start + min(GROWTH * max(thread.pieces.values(), default=FIRST_PIECE), MAX_COPY)
                thread.pieces[start] = size
            self._wanted.append(thread)

    def threads(self) -> list[ThreadInfo]:
        """A core names its process (NT_PRPSINFO), not its threads."""
        name = self._notes.process.name if self._notes.process else ""
        return [ThreadInfo(self.pid, t.tid, name if t.tid == self.pid else "", name) for t in self._threads]

    def stats(self) -> CollectorStats:
        return CollectorStats(1, Pauses(), 0, 0, 0, {}, ())

    def stop(self) -> None:
        """No thread comes a further time; those that have not come yet still do."""
        self._stopped = True

    def close(self) -> None:
        self._stopped = True


def _with_pac_mask(arch: Arch, notes: CoreNotes) -> Arch:
    """The mask that the kernel stated for the process."""
    mask = next((thread.pac_mask for thread in notes.threads if thread.pac_mask), None)
    return arch if mask is None or not arch.pac_mask else replace(arch, pac_mask=mask)


def _fp_registers(
    arch: Arch, core: ElfFile, thread: CoreThread, row: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> set[int]:
    """Fill in the columns that stand in NT_FPREGSET; those that the core does not tell."""
    if not arch.fpregset:
        return set()
    words = np.frombuffer(thread.fp_registers[: len(thread.fp_registers) & -8], np.dtype(f"{core.order}u8"))
    known = {column: slot for column, slot in arch.fpregset.items() if slot < len(words)}
    row[list(known)] = words[list(known.values())]
    return set(arch.fpregset) - set(known)
