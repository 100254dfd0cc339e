"""Synthetic programs, tables and stacks whose walk is known, for any architecture.

A Program is a file of functions, each with one rule. A MadeLane is a stack of calls between them, laid out according to
the rules, with the frames that a correct walk finds.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyprof.model.address_space import AddressSpace, Mapping, ReadMemory
from pyprof.model.arch import Arch
from pyprof.model.sample_batch import Piece, SampleBatch, SampleKind, StackSlab
from pyprof.model.unwind_result import Trust
from pyprof.objfile.elf_file import ElfFile
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.module_unwind_sources import Reader
from pyprof.unwind.rules import UNDEFINED, Extents, FunctionRows, RegKind, RegRule, Rule
from pyprof.unwind.unwinder import Unwinder

BASE = 0x10000000
SPAN = 0x10000
FUNCTION = 0x40
STACK = 0x70000000
STACK_SPAN = 0x100000
OTHER_STACK = 0x60000000


def little_elf(arch: Arch, code: bytes, entry: int = 0) -> ElfFile:
    """Return an ELF file with one executable PT_LOAD at address 0 that contains the code."""
    order = "<" if arch.byteorder == "little" else ">"
    wide = arch.elf_class == 64
    head, phead = (64, 56) if wide else (52, 32)
    ident = b"\x7fELF" + bytes((2 if wide else 1, 1 if arch.byteorder == "little" else 2, 1)) + bytes(9)
    header = struct.pack(
        order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"),
        3, arch.elf_machine, 1, entry, head, 0, 0, head, phead, 1, 0, 0, 0,
    )  # fmt: skip
    size = len(code)
    if wide:
        load = struct.pack(order + "IIQQQQQQ", 1, 5, 0x1000, 0, 0, size, size, 0x1000)
    else:
        load = struct.pack(order + "IIIIIIII", 1, 0x1000, 0, 0, size, size, 5, 0x1000)
    return ElfFile.from_bytes((ident + header + load).ljust(0x1000, b"\0") + code, "made")


@dataclass
class HandSource:
    """A source of unwind rows with given functions."""

    all: Sequence[FunctionRows]
    name: str = "eh_frame"
    trust: Trust = Trust.EH_FRAME
    exact: bool = True

    def function_at(self, svma: int) -> FunctionRows | None:
        return next((f for f in self.all if f.start <= svma < f.end), None)

    def extents(self) -> Extents:
        return np.array([f.start for f in self.all], np.uint64), np.array([f.end for f in self.all], np.uint64)

    def functions(self) -> Iterator[FunctionRows]:
        return iter(self.all)


def reader_of(source: HandSource) -> Reader:
    """Return a reader that finds this source in every file."""
    return lambda elf, arch, diagnostics: source


class HandImages(ImageStore):
    """An image store with one image, loaded at BASE in every address space."""

    def __init__(self, elf: ElfFile) -> None:
        super().__init__(Diagnostics())
        self._elf = elf
        self._made_images: dict[int, Image] = {}

    def image(self, space: AddressSpace, avma: int) -> Image | None:
        module = space.module_at(avma)
        if module is None or not module.has_file:
            return None
        return self._made_images.setdefault(space.id, Image(module, self._elf, BASE, ""))


def made_space(number: int = 1, read: ReadMemory = lambda avma, size: b"") -> AddressSpace:
    mappings = (
        Mapping(BASE, BASE + SPAN, "r-xp", 0, "8:1", 7, "/made"),
        Mapping(OTHER_STACK, OTHER_STACK + STACK_SPAN, "rw-p", 0, "0:0", 0, ""),
        Mapping(STACK, STACK + STACK_SPAN, "rw-p", 0, "0:0", 0, "[stack]"),
    )
    return AddressSpace(number, number, 0, mappings, read, "")


KINDS = ("sp", "sp_fp", "fp", "expr", "other", "fp_lost", "ra_expr")
"""Kinds of frames, named after the base of the CFA or after a special property."""


@dataclass
class Made:
    """A function of a Program."""

    kind: str
    size: int
    svma: int
    rule: Rule | None


class Program:
    """Functions of every kind at addresses n * FUNCTION. Function 0 is the root."""

    def __init__(self, arch: Arch, seed: int, uncovered: bool = True) -> None:
        self.arch = arch
        self.random = random.Random(seed)
        self.other = min(arch.callee_saved - {arch.fp})
        kinds = [k for k in KINDS for _ in range(6)]
        if uncovered and arch.chain is not None and arch.chain.base == arch.fp and arch.lr < 0:
            kinds += ["record"] * 8
        self.functions = [Made("root", 0, FUNCTION, self._rule("root", 0))]
        for kind in kinds:
            size = arch.word * self.random.randrange(6, 40) - 2 * arch.sp_off
            svma = FUNCTION * (len(self.functions) + 1)
            self.functions.append(Made(kind, size, svma, self._rule(kind, size)))
        self.trampoline = Made("signal", 0, FUNCTION * (len(self.functions) + 1), self._rule("signal", 0))
        covered = [f for f in (*self.functions, self.trampoline) if f.rule is not None]
        self.source = HandSource(
            [FunctionRows(f.svma, f.svma + FUNCTION, (f.svma,), (f.rule,)) for f in covered if f.rule is not None]
        )
        code = bytearray(SPAN)
        if arch.name in ("x86_64", "i386"):
            for at in range(16, SPAN, 16):
                code[at - 5] = 0xE8  # a call of itself precedes every multiple of 16
        self.elf = little_elf(arch, bytes(code))

    def _rule(self, kind: str, size: int) -> Rule | None:
        arch, word = self.arch, self.arch.word
        ra = RegRule(RegKind.AT_CFA, -word)
        fp = (arch.fp, RegRule(RegKind.AT_CFA, -2 * word))
        other = (self.other, RegRule(RegKind.AT_CFA, -3 * word))
        dwarf = {column: number for number, column in arch.dwarf.items()}
        number = dwarf[arch.sp]
        by_sp = bytes((0x92, number, *_sleb(size)))
        match kind:
            case "root":
                return Rule(arch.sp, word, UNDEFINED)
            case "sp":
                return Rule(arch.sp, size, ra)
            case "sp_fp":
                return Rule(arch.sp, size, ra, (other, fp))
            case "fp":
                return Rule(arch.fp, 2 * word, ra, (other, fp))
            case "expr":
                return Rule(-1, 0, ra, (fp,), cfa_expr=by_sp)
            case "other":
                return Rule(self.other, 4 * word, ra, (other, fp))
            case "fp_lost":
                return Rule(arch.sp, size, ra, (other, (arch.fp, UNDEFINED)))
            case "ra_expr":
                back = bytes((0x31, 0x12, 0x22, 0x12, 0x22, *([0x12, 0x22] if word == 8 else []), 0x1C))  # cfa - word
                return Rule(arch.sp, size, RegRule(RegKind.AT_EXPR, expr=back), (other, fp))
            case "signal":
                at = RegKind.AT_REG
                saved = tuple(
                    (c, RegRule(at, (4 + k) * word, arch.sp)) for k, c in enumerate(sorted({arch.fp, self.other}))
                )
                return Rule(arch.sp, 2 * word, RegRule(at, 3 * word, arch.sp), saved, cfa_deref=True, signal=True)
            case _:
                return None


def _sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        if (value == 0 and not byte & 0x40) or (value == -1 and byte & 0x40):
            return bytes((*out, byte))
        out.append(byte | 0x80)


@dataclass
class MadeLane:
    """A stack.

    Attributes:
        registers: Registers of the innermost frame.
        memory: Words by address.
        frames: (pc, exact, trust) of each frame of a correct walk.
    """

    registers: dict[int, int]
    memory: dict[int, int]
    frames: list[tuple[int, bool, int]]
    base: int
    size: int
    kind: SampleKind = SampleKind.STOPPED
    space: int = 1
    pieces: list[tuple[int, int]] = field(default_factory=list)


def make_lane(program: Program, depth: int, signals: bool = False) -> MadeLane:  # noqa: C901
    """Return a stack of this many calls of the program's functions, from the leaf up to function 0."""
    arch, rng, word = program.arch, program.random, program.arch.word
    drop = arch.sp_off  # the caller's sp = cfa + sp_off
    lane = MadeLane({}, {}, [], 0, 0)
    calls: list[Made] = []
    for place in range(depth):
        if signals and place and place == depth // 2:
            calls.append(program.trampoline)
        else:
            calls.append(_walkable(program, calls, rng.choice(program.functions[1:])))
    calls.append(program.functions[0])

    # First the layout (sp and cfa of each frame), then the saved registers from root to leaf.
    sp = OTHER_STACK + 0x1000 if signals and rng.random() < 0.5 else STACK + 0x1000
    lane.base = sp - 0x80
    sps, cfas = [], []
    other_sp = None
    for call in calls:
        sps.append(sp)
        size = call.size if call.kind in ("sp", "sp_fp", "expr", "fp_lost", "ra_expr") else 0
        cfa = sp + (size or word * rng.randrange(6, 30) - 2 * drop)
        if call.kind == "signal":
            other_sp = STACK + 0x8000 if sp < STACK else sp + 8 * word - 2 * drop + word * rng.randrange(64)
            cfas.append(other_sp - drop)
            sp = other_sp
            continue
        cfas.append(cfa)
        sp = cfa + drop
    exact = True
    fp = other = 0
    values = []
    for place in range(len(calls) - 1, -1, -1):
        call, cfa = calls[place], cfas[place]
        after = (fp, other)
        if call.kind in ("fp", "record"):
            fp = cfa - 2 * word
        elif call.kind != "sp":
            fp = rng.randrange(1, 1 << 28) * word
        if call.kind == "other":
            other = cfa - 4 * word
        elif call.kind in ("sp_fp", "fp", "fp_lost", "ra_expr", "signal"):
            other = rng.randrange(1, 1 << 28) * word
        values.append(after)
    values.reverse()
    lane.registers = {arch.fp: fp, program.other: other, arch.sp: sps[0]}

    for place, call in enumerate(calls):
        pc = (
            BASE + call.svma + (rng.randrange(0, FUNCTION) if exact else 16 * rng.randrange(1, FUNCTION // 16))
        ) & arch.pc_mask
        trust = Trust.CONTEXT if place == 0 else Trust.FP if calls[place - 1].kind == "record" else Trust.EH_FRAME
        lane.frames.append((pc, exact, trust))
        if place == 0:
            lane.registers[arch.pc] = pc
        elif calls[place - 1].kind == "signal":
            lane.memory[sps[place - 1] + 3 * word] = pc
        else:
            lane.memory[cfas[place - 1] - word] = pc
        exact = call.kind == "signal"
        cfa, (saved_fp, saved_other) = cfas[place], values[place]
        if call.kind in ("sp_fp", "fp", "expr", "other", "ra_expr", "record"):
            lane.memory[cfa - 2 * word] = saved_fp
        if call.kind in ("sp_fp", "fp", "other", "fp_lost", "ra_expr"):
            lane.memory[cfa - 3 * word] = saved_other
        if call.kind == "signal":
            lane.memory[sps[place] + 2 * word] = cfa
            for k, column in enumerate(sorted({arch.fp, program.other})):
                lane.memory[sps[place] + (4 + k) * word] = saved_fp if column == arch.fp else saved_other
    ends = [a for a in lane.memory if (a < STACK) == (lane.base < STACK)]
    lane.size = max([*ends, lane.base + 0x100]) + 4 * word - lane.base
    if lane.base < STACK and other_sp is not None:
        far = [a for a in lane.memory if a >= STACK]
        lane.pieces.append((STACK + 0x8000 - 0x80, max([*far, STACK + 0x8000]) + 4 * word))
    return lane


SAVES_FP = {"sp_fp", "fp", "expr", "other", "ra_expr", "record", "signal"}
SAVES_OTHER = {"sp_fp", "fp", "other", "fp_lost", "ra_expr", "signal"}


def _walkable(program: Program, inner: Sequence[Made], call: Made) -> Made:
    """Return the function, or a plain one if it needs a register that an inner frame lost."""
    fp_known = other_known = True
    for made in inner:
        fp_known = made.kind != "fp_lost" and (fp_known or made.kind in SAVES_FP)
        other_known = made.kind != "record" and (other_known or made.kind in SAVES_OTHER)
    lost = (call.kind in ("fp", "record") and not fp_known) or (call.kind == "other" and not other_known)
    return next(f for f in program.functions if f.kind == "sp_fp") if lost else call


def batch_of(arch: Arch, lanes: Sequence[MadeLane], read: ReadMemory = lambda avma, size: b"") -> SampleBatch:
    """Return the batch that a collector would yield.

    Args:
        arch: The architecture.
        lanes: The stacks.
        read: Reader of the target's current memory.
    """
    n = len(lanes)
    regs = np.zeros((n, len(arch.registers)), np.uint64)
    data = bytearray()
    base, offset, size, pieces = [], [], [], {}
    for number, lane in enumerate(lanes):
        for column, value in lane.registers.items():
            if lane.kind != SampleKind.BLOCKED or column in (arch.sp, arch.pc):
                regs[number, column] = value
        base.append(lane.base)
        offset.append(len(data))
        size.append(lane.size)
        data += _bytes(arch, lane, lane.base, lane.base + lane.size)
        data += bytes(-len(data) % 8)
        if lane.pieces:
            pieces[number] = tuple(Piece(a, _bytes(arch, lane, a, b)) for a, b in lane.pieces)
    spaces = {lane.space: made_space(lane.space, read) for lane in lanes}
    return SampleBatch(
        arch=arch,
        kind=np.array([lane.kind for lane in lanes], np.uint8),
        time_ns=np.arange(n, dtype=np.int64),
        tid=np.arange(1, n + 1, dtype=np.int32),
        pid=np.ones(n, np.int32),
        space=np.array([lane.space for lane in lanes], np.int32),
        cpu=np.zeros(n, np.int32),
        weight=np.ones(n, np.int64),
        regs=regs,
        stack=StackSlab(
            np.frombuffer(bytes(data), np.uint8),
            np.array(base, np.uint64),
            np.array(offset, np.int64),
            np.array(size, np.int64),
            pieces,
        ),
        spaces=spaces,
    )


def _bytes(arch: Arch, lane: MadeLane, start: int, end: int) -> bytes:
    out = bytearray(end - start)
    for avma, word in lane.memory.items():
        at = avma - start
        if 0 <= at <= len(out) - arch.word:
            out[at : at + arch.word] = word.to_bytes(arch.word, "little" if arch.byteorder == "little" else "big")
    return bytes(out)


def unwinder_of(program: Program, options: UnwindOptions | None = None) -> Unwinder:
    readers = {"eh_frame": reader_of(program.source)}
    return Unwinder(HandImages(program.elf), options or UnwindOptions(), Diagnostics(), readers)
