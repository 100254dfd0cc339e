"""The binding of the native walker (native/walk): its file, its structures, its tables of rules, and runs of frames.

A NativeWalker belongs to the rules of one architecture. start_batch() points its structure to the columns of a batch,
start_samples() chooses samples, and walk_on() walks until the native walker needs an answer (Why). The caller answers
in `row` and calls walk_on() again. follow_rules() is independent of these: it finds the callers of one frame by the
simplest rules, for deep stacks.

`native/` has the sources. `native/build.py` compiles them with a pinned compiler and writes manifest.json, which has
the SHA-256 of each object. An object that is missing, that differs from its manifest, or that the system does not load
is not used. reference_unwinder.py then walks all stacks, which takes about fifty times as long.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.unwind_result import StackEnd, Trust
from pyprof.unwind.rule_cache import RuleTable
from pyprof.unwind.rule_lookup import SpaceIndex

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
AnyArray = npt.NDArray[Any]

UNKNOWN = (1 << 64) - 1
"""Value of fp in a frame whose frame pointer is unknown."""
OUTERMOST_RULE = -2
"""Rule id of a frame whose unwind rule says that it has no caller; no memory is read to find that out."""
MAX_RULE_ID = (1 << 24) - 2
"""Greatest rule id that an entry of the native walker's hash tables can hold."""

IS_RETURN, IS_CODE, IS_CALL = 1 << 24, 1 << 25, 1 << 26
"""Flags with which Python answers the native walker's question for a caller, as in walk.h. IS_RETURN: the caller's pc
may be a return address. IS_CODE: the callee's pc may be code. IS_CALL: the caller may have called the callee.
"""

_MAX_BITS = 19
"""Binary logarithm of the maximum number of entries of one of the native walker's hash tables. A full table is
cleared.
"""
_WORD = (1 << 64) - 1
_FIRST_ROOM = 1 << 14


class Why(IntEnum):
    """The reason for which the native walker returned (enum why in walk.h)."""

    DONE = 0
    RULE = 1
    CALLER = 2
    ROOM = 3
    SAMPLE = 4


class WalkerState(IntEnum):
    """The next action of the native walker (enum state in walk.h)."""

    SAMPLE = 0
    FRAME = 1
    RULE = 2
    CALLER = 3
    END = 4


def _words(names: str) -> list[tuple[str, type[ctypes.c_uint64]]]:
    return [(name, ctypes.c_uint64) for name in names.split()]


class TableRow(ctypes.Structure):
    """The ctypes mirror of `struct table` in walk.h, the header of a hash table of the native walker: unwind rules by
    pc, or judged calls.
    """

    _fields_ = _words("entries bits used")


class SpaceRow(ctypes.Structure):
    """The ctypes mirror of `struct space` in walk.h: the hash tables of one address space."""

    _fields_ = [("returns", TableRow), ("exacts", TableRow), ("judged", TableRow), *_words("version by_record")]


class WalkRow(ctypes.Structure):
    """The ctypes mirror of `struct walk` in walk.h: the native walker's inputs, results, and current question. Columns
    are addresses of arrays.
    """

    _fields_ = _words(
        "flags cfa_off ra_off fp_off saved_sp_off trusts rules_count "
        "word swapped mask pc_mask pac_mask sp_off chain_next chain_ra chain_cfa "
        "columns pc_column sp_column fp_column lr_column max_depth trust_code trust_fp strict "
        "data data_size bases offsets sizes registers has_all order order_space count spaces "
        "begins counts ends missings tops pcs sps exacts trusts_found fps rules room used "
        "state position first pc sp fp lr fp_known lr_known exact top trust cfa "
        "why asked rule lasting end missing marks"
    )


def address_of(array: AnyArray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def addresses_of(*arrays: AnyArray) -> list[int]:
    return [address_of(array) for array in arrays]


class _Table:
    """A hash table of the native walker, and the memory of its entries."""

    def __init__(self, row: TableRow, words: int, bits: int) -> None:
        self._row = row
        self._words = words
        self._memory = self._allocate(bits)
        row.entries, row.bits, row.used = address_of(self._memory), bits, 0

    def _allocate(self, bits: int) -> U64:
        return np.zeros((1 << bits) * self._words, np.uint64)

    def grow(self, library: ctypes.CDLL) -> None:
        """Make the hash table of the native walker larger if it is half full, or clear it if it has
        its maximum size.
        """
        row = self._row
        if row.used * 2 < 1 << row.bits:
            return
        larger = TableRow(bits=min(row.bits + 2, _MAX_BITS))
        memory = self._allocate(larger.bits)
        larger.entries = address_of(memory)
        if row.bits < _MAX_BITS:
            move = library.move_entries if self._words == 2 else library.move_calls
            move(ctypes.addressof(row), ctypes.addressof(larger))
        row.entries, row.bits, row.used = larger.entries, larger.bits, larger.used
        self._memory = memory


class SpaceTables:
    """The hash tables that the native walker uses for one address space: rules by pc, possible return addresses, and
    possible calls.
    """

    def __init__(self, library: ctypes.CDLL, by_record: bool) -> None:
        """Create empty tables.

        Args:
            library: The native walker.
            by_record: Frames without a rule may be followed by their frame records.
        """
        self.row = SpaceRow(by_record=by_record)
        self._library = library
        row = self.row
        self._tables = _Table(row.returns, 2, 8), _Table(row.exacts, 2, 6), _Table(row.judged, 3, 4)

    def grow(self) -> None:
        for table in self._tables:
            table.grow(self._library)


@dataclass(slots=True)
class FrameRun:
    """The callers of a frame that follow_rules() has found, one after the other, as columns.

    Attributes:
        pc: Return addresses, of shape (n,). sp and fp are the registers of the same frames.
        rule: Id of the rule that found each frame.
        root: True if the last frame has no caller.
        last: If root: the rule id that found the return address 0, or OUTERMOST_RULE.
        top: If root: the CFA of the last frame.
    """

    pc: U64
    sp: U64
    fp: U64
    rule: I64
    root: bool = False
    last: int = -1
    top: int = 0

    def __len__(self) -> int:
        return len(self.pc)


@dataclass(slots=True)
class FoundFrames:
    """The frames that the native walker finds, one sample after the other, as columns with room for more.

    Attributes:
        pc: pc of each frame, of shape (room,). The columns exact (uint8), trust and sp are as in
            model.unwind_result.Walk, too.
    """

    pc: U64
    exact: npt.NDArray[np.uint8]
    trust: npt.NDArray[np.uint8]
    sp: U64

    @classmethod
    def with_room(cls, room: int) -> FoundFrames:
        return cls(
            np.empty(room, np.uint64), np.empty(room, np.uint8), np.empty(room, np.uint8), np.empty(room, np.uint64)
        )

    def enlarged(self, used: int) -> FoundFrames:
        """Return columns of twice the size with the same first `used` frames."""
        larger = FoundFrames.with_room(2 * len(self.pc))
        for old, new in (
            (self.pc, larger.pc),
            (self.exact, larger.exact),
            (self.trust, larger.trust),
            (self.sp, larger.sp),
        ):
            new[:used] = old[:used]
        return larger


@dataclass(slots=True)
class BatchResult:
    """The columns into which the native walker writes the result for each sample of a batch: where its frames begin,
    and why its stack ended.

    Attributes:
        begin: int64 of shape (n,): index of the first frame of each sample in FoundFrames.
        count: int64 of shape (n,): number of frames of each sample.
        end: uint8 of shape (n,): StackEnd of each sample. missing and top are as in model.unwind_result.Walk.
    """

    begin: I64
    count: I64
    end: npt.NDArray[np.uint8]
    missing: U64
    top: U64

    @classmethod
    def with_samples(cls, n: int) -> BatchResult:
        begin, count, missing, top = np.zeros((4, n), np.uint64)
        return cls(begin.view(np.int64), count.view(np.int64), np.zeros(n, np.uint8), missing, top)


class NativeWalker:
    """The native walker for the unwind rules of one architecture.

    It unwinds samples until it needs something that only Python code knows, and returns a question in `row`. The caller
    writes the answer there and continues the walker.

    Attributes:
        row: The structure that Python and native code share. It holds the question and the answer.
        frames: The frames that the native walker has found in the current batch.
    """

    def __init__(self, library: ctypes.CDLL, arch: Arch, table: RuleTable, max_depth: int) -> None:
        self.row = WalkRow()
        self.frames = FoundFrames.with_room(0)
        self._library = library
        self._arch = arch
        self._table = table
        self._max_depth = max_depth
        self._room = _FIRST_ROOM
        self._flags: AnyArray | None = None
        self._kept: tuple[object, ...] = ()
        self._order: tuple[AnyArray, ...] = ()
        self._set_constants(self.row)
        self._follow_row = WalkRow(strict=1)
        self._set_constants(self._follow_row)
        self._walk = library.walk_stacks
        self._address = ctypes.addressof(self.row)

    def open_space(self, enabled: bool) -> SpaceTables:
        """Create empty tables for another address space.

        Args:
            enabled: Frames without a rule may be followed by their frame records.
        """
        chain = self._arch.chain
        usable = (
            chain is not None
            and (chain.base, chain.ra_in_next, chain.sp_known) == (self._arch.fp, False, True)
            and chain.cfa_off is not None
        )
        return SpaceTables(self._library, enabled and usable)

    def _set_constants(self, row: WalkRow) -> None:
        arch = self._arch
        row.word, row.swapped, row.mask = arch.word, arch.byteorder != sys.byteorder, arch.mask
        row.pc_mask, row.pac_mask, row.sp_off = arch.pc_mask, arch.pac_mask, arch.sp_off & _WORD
        if arch.chain is not None:
            row.chain_next, row.chain_ra = arch.chain.next_off & _WORD, arch.chain.ra_off & _WORD
            row.chain_cfa = (arch.chain.cfa_off or 0) & _WORD
        row.columns = len(arch.registers)
        row.pc_column, row.sp_column, row.fp_column = arch.pc, arch.sp, arch.fp
        row.lr_column = arch.lr if arch.lr >= 0 else len(arch.registers)
        row.max_depth, row.trust_code, row.trust_fp = self._max_depth, Trust.CODE, Trust.FP

    def _set_rules(self, row: WalkRow) -> None:
        table = self._table
        row.flags, row.cfa_off, row.ra_off = addresses_of(table.flags, table.cfa_off, table.ra_off)
        row.fp_off, row.saved_sp_off, row.trusts = addresses_of(table.fp_off, table.saved_sp_off, table.trust)

    def start_batch(self, batch: SampleBatch, result: BatchResult) -> None:
        """Point the native walker to the columns of a batch, and to new columns for its result."""
        row, stack = self.row, batch.stack
        self.frames = FoundFrames.with_room(self._room)
        columns: tuple[AnyArray, ...] = (
            np.ascontiguousarray(stack.data),
            np.ascontiguousarray(stack.base),
            np.ascontiguousarray(stack.offset),
            np.ascontiguousarray(stack.size),
            np.ascontiguousarray(batch.regs),
            (batch.kind == SampleKind.STOPPED).view(np.uint8),
        )
        row.data, row.bases, row.offsets, row.sizes, row.registers, row.has_all = addresses_of(*columns)
        row.data_size, row.used = len(stack.data), 0
        found = result.begin, result.count, result.end, result.missing, result.top
        row.begins, row.counts, row.ends, row.missings, row.tops = addresses_of(*found)
        self._kept = columns, result
        self._place_frames()

    def _place_frames(self) -> None:
        row, frames = self.row, self.frames
        row.pcs, row.exacts, row.trusts_found, row.sps = addresses_of(frames.pc, frames.exact, frames.trust, frames.sp)
        row.room = self._room = len(frames.pc)

    def start_samples(self, order: I64, number: I64, spaces: Sequence[SpaceTables]) -> None:
        """Choose the samples that walk_on() walks.

        Args:
            order: Indexes of the samples in the batch.
            number: For each sample, the index of its address space in `spaces`.
            spaces: The hash tables of the address spaces.
        """
        row = self.row
        rows = np.array([ctypes.addressof(space.row) for space in spaces], np.uint64)
        for space in spaces:
            space.grow()
        self._order = order, number, rows
        row.order, row.order_space, row.spaces = addresses_of(*self._order)
        row.count, row.position, row.state = len(order), 0, WalkerState.SAMPLE

    def walk_on(self) -> int:
        """Run the native walker until all chosen samples are done or it needs an answer, and return
        the reason (Why).
        """
        row = self.row
        while True:
            self._rules_as_now(row)
            self._walk(self._address)
            why: int = row.why
            if why != Why.ROOM:
                return why
            self.frames = self.frames.enlarged(row.used)
            self._place_frames()

    def _rules_as_now(self, row: WalkRow) -> None:
        if self._flags is not self._table.flags:
            self._flags = self._table.flags
            self._set_rules(self.row)
            self._set_rules(self._follow_row)
        row.rules_count = len(self._table)

    def follow_rules(
        self,
        index: SpaceIndex,
        tables: SpaceTables,
        words: npt.NDArray[np.unsignedinteger],
        frame: tuple[int, int, int, int],
        max_frames: int,
    ) -> FrameRun:
        """Return the callers of a frame whose pc is a return address. Stop at the first frame whose rule uses or
        restores other registers than sp and fp.

        Args:
            index: Rules of the address space.
            tables: The hash tables of the address space.
            words: Memory of the sample as words.
            frame: Address of the first word in the process; pc, sp and fp of the frame. fp may be UNKNOWN.
            max_frames: Maximum number of callers.
        """
        row, room, tables.row.version = self._follow_row, max(max_frames, 1), index.version
        base, row.pc, row.sp, row.fp = frame
        row.fp_known, row.lr_known, row.exact = frame[3] != UNKNOWN, 0, 0
        frames = FoundFrames.with_room(room)
        fps, rules, one = np.empty(room, np.uint64), np.empty(room, np.int64), np.zeros(1, np.uint64)
        place, result = np.array([base, 0, words.nbytes], np.uint64), np.zeros(5, np.uint64)
        spaces = np.array([ctypes.addressof(tables.row)], np.uint64)
        row.data, row.data_size, row.order, row.spaces = (
            address_of(words),
            words.nbytes,
            *addresses_of(one, spaces),
        )
        row.order_space, row.registers, row.has_all = row.order, row.order, row.order
        row.bases, row.offsets, row.sizes = (address_of(place) + 8 * field for field in range(3))
        row.begins, row.counts, row.ends, row.missings, row.tops = (
            address_of(result) + 8 * field for field in range(5)
        )
        row.pcs, row.exacts, row.trusts_found, row.sps = addresses_of(frames.pc, frames.exact, frames.trust, frames.sp)
        row.fps, row.rules, row.room, row.max_depth = address_of(fps), address_of(rules), room, max_frames
        row.count, row.position, row.first, row.used, row.state = 1, 0, 0, 0, WalkerState.FRAME
        why = self._follow(row, index, tables)
        used = row.used
        run = FrameRun(frames.pc[:used], frames.sp[:used], fps[:used], rules[:used])
        if why == Why.DONE and result[2] == StackEnd.ROOT:
            last = int(run.sp[-1]) if used else frame[2]
            run.root = True
            run.last, run.top = (OUTERMOST_RULE, last) if row.asked else (row.rule, row.cfa)
        return run

    def _follow(self, row: WalkRow, index: SpaceIndex, tables: SpaceTables) -> int:
        while True:
            tables.grow()
            self._rules_as_now(row)
            self._walk(ctypes.addressof(row))
            if row.why != Why.RULE:
                why: int = row.why
                return why
            if not answer_rule(row, index):
                return Why.CALLER


def answer_rule(row: WalkRow, index: SpaceIndex) -> bool:
    """Give the native walker the rule that it asked for. Return False if it cannot execute that rule."""
    rule, lasting = index.lasting_rule_id(row.asked, bool(row.exact))
    row.rule, row.lasting = min(rule, MAX_RULE_ID), lasting
    return rule <= MAX_RULE_ID


FOLDER = Path(__file__).resolve().parent / "native"


class NativeCodeError(Exception):
    """The native walker cannot be used here. The message says why."""


def digest_object(data: bytes) -> str:
    """Return the SHA-256 of a shared object file of native code as hexadecimal digits.

    The module hashlib is not used, because it would load OpenSSL, which takes longer than computing the digest.
    """
    module = importlib.import_module("_sha2" if sys.version_info >= (3, 12) else "_sha256")
    found: str = module.sha256(data).hexdigest()
    return found


def open_library(folder: Path, machine: str) -> ctypes.CDLL:
    """Load the native walker of a machine after comparing it with the manifest.

    Args:
        folder: Folder of the objects and of their manifest.
        machine: Machine name as `uname -m` prints it.

    Raises:
        NativeCodeError: There is none, or it may not be used.
    """
    path = folder / f"walk.{machine}.so"
    try:
        expected = json.loads((folder / "manifest.json").read_bytes())["objects"].get(path.name)
        if expected is None:
            raise NativeCodeError(f"pyprof has no native code for {machine}")
        if digest_object(path.read_bytes()) != expected:
            raise NativeCodeError(f"{path} is not the object that its manifest describes")
        library = ctypes.CDLL(str(path))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NativeCodeError(f"{path} cannot be loaded: {error}") from None
    return prepare(library)


def prepare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the ctypes signatures of the native functions that a loaded library exports, and return the library."""
    for function, pointers, result in _FUNCTIONS:
        found = getattr(library, function, None)
        if found is not None:
            found.argtypes, found.restype = (ctypes.c_void_p,) * pointers, result
    return library


_FUNCTIONS = (
    ("walk_stacks", 1, None),
    ("move_entries", 2, None),
    ("move_calls", 2, None),
    ("flow_analyse", 1, ctypes.c_int),
    ("flow_prove", 1, ctypes.c_int),
    ("flow_memory_size", 0, ctypes.c_uint64),
)
"""The functions that native libraries may export: name, number of pointer arguments, type of the result."""


@cache
def _opened() -> ctypes.CDLL | str:
    try:
        return open_library(FOLDER, os.uname().machine)
    except NativeCodeError as error:
        return str(error)


def find_library() -> ctypes.CDLL | None:
    """Return the loaded native walker, or None if it cannot be used. The first call reads files."""
    found = _opened()
    return None if isinstance(found, str) else found


def describe_problem() -> str:
    """Return why the native walker cannot be used, or "" if it can."""
    found = _opened()
    return found if isinstance(found, str) else ""
