"""Synthetic memory of a CPython process for tests of the BPF program: a heap, a stack and one thread."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import cached_property

import numpy as np

from pyprof.collectors.bpf import ring_buffer_records
from pyprof.collectors.bpf.kernel_program import pack_offsets
from pyprof.interpreters.cpython.asyncio_tasks import TaskLayout
from pyprof.interpreters.cpython.bpf_frame_decoder import find_offsets
from pyprof.interpreters.cpython.layout import LAYOUTS, NONE, AwaitLayout, Layout
from pyprof.model.interpreter_reader_protocols import FrameOffsets
from tests.bpf.user_space import UserSpace

PID = 4711
HEAP, HEAP_BYTES = 0x5555_0000_0000, 2 << 20
STACK, STACK_BYTES = 0x7FFF_F000_0000, 1 << 18
FREE = HEAP + 0x20000
"""Address of the unused part of the heap. Runtime, interpreter and thread state lie below it."""
ENTRY, MARK = 3, 0x1234_5678
"""Owner field of entry frames, and the instruction of an entry frame."""
MINORS = (8, 9, 10, 11, 12, 13)
OF_TASKS = 14
AWAITS = AwaitLayout(iframe=0x40, stackpointer=32, set_used=24, set_table=40, set_mask=32)
WITHOUT_CFRAMES = {"cframe": NONE, "cframe_current": NONE, "cframe_previous": NONE, "root_cframe": NONE}


class MadeProcess:
    """A synthetic CPython process.

    Version 3.13 has the layout of 3.12 without CFrames; version 3.14 has in addition asyncio tasks.

    Attributes:
        sp: Stack pointer of the thread.
        stack_end: End of the thread's stack as an earlier sample found it, or 0 if none did.
        absent: Stack addresses that cannot be read.
        goroutines: Offsets of a Go runtime as in the map of processes, zeros for none.
    """

    runtime, interpreter, thread, pthread = HEAP, HEAP + 0x8000, HEAP + 0x10000, HEAP + 0x14000
    mark_code = HEAP + 0x18000

    def __init__(self, minor: int) -> None:
        layout = LAYOUTS[min(minor, 12)]
        if minor >= 13:
            layout = replace(layout, thread=replace(layout.thread, **WITHOUT_CFRAMES))
        self.tasks: TaskLayout | None = None
        if minor == 14:
            layout = replace(layout, awaits=AWAITS)
            self.tasks = TaskLayout(awaited_by=96, is_set=104, coro=112, running_task=0x200)
        self.layout: Layout = layout
        self.heap, self.stack = bytearray(HEAP_BYTES), bytearray(STACK_BYTES)
        self.sp, self.stack_end = STACK, 0
        self.absent = range(0)
        self.goroutines: tuple[int, ...] = (0,) * 7
        offsets = self.offsets
        self.put(self.runtime + offsets.interpreters_head, self.interpreter)
        self.put(self.interpreter + offsets.threads_head, self.thread)
        self.put(self.thread + offsets.thread_id, self.pthread)
        self.put(self.pthread + offsets.tid_in_pthread, PID)
        if offsets.native_id != NONE:
            self.put(self.thread + offsets.native_id, PID)

    @cached_property
    def offsets(self) -> FrameOffsets:
        found = find_offsets(self.layout, greenlets=True, tasks=self.tasks)
        assert found is not None
        return found

    def put(self, address: int, value: int) -> None:
        memory, at = (self.stack, address - STACK) if address >= STACK else (self.heap, address - HEAP)
        struct.pack_into("<Q", memory, at, value & (1 << 64) - 1)

    def at(self, address: int) -> bytes:
        """Return all memory from this address to the end of its mapping."""
        return bytes(self.stack[address - STACK :] if address >= STACK else self.heap[address - HEAP :])

    def frame(self, at: int, previous: int, code: int = 0, flag: int = 0, instr: int = 0) -> None:
        """Write an interpreter frame.

        Args:
            at: Address of the frame.
            previous: Address of the calling frame.
            code: Address of the code object.
            flag: Owner of the frame, or 1 for an entry frame, depending on the version.
            instr: Address of the current instruction.
        """
        offsets = self.offsets
        self.put(at + offsets.frame_previous, previous)
        self.put(at + offsets.frame_code, code)
        self.put(at + (offsets.frame_instr & ~7), instr)
        if offsets.frame_flag != NONE:
            place = at + (offsets.frame_flag & ~7)
            self.put(place, flag << 8 * (offsets.frame_flag & 7))

    def calls(self, frame: int) -> None:
        """Mark the frame as calling a C function (CPython 3.11 to 3.13)."""
        self.put(frame + self.offsets.frame_height, 0xFFFFFFFF)

    def innermost(self, frame: int, cframe: int = 0) -> None:
        """Set the innermost frame of the thread state.

        Args:
            frame: Address of the interpreter frame.
            cframe: Address of the CFrame in versions that have CFrames; 0 creates one.
        """
        offsets = self.offsets
        if offsets.thread_cframe != NONE:
            self.put(self.thread + offsets.thread_cframe, cframe or STACK + 0x100)
            if not cframe:
                self.cframe(STACK + 0x100, frame, 0)
        if offsets.thread_frame != NONE:
            self.put(self.thread + offsets.thread_frame, frame)

    def cframe(self, at: int, frame: int, previous: int) -> None:
        offsets = self.offsets
        if offsets.cframe_current != NONE:
            self.put(at + offsets.cframe_current, frame)
        self.put(at + offsets.cframe_previous, previous)

    def scatter(self, seed: int, density: float) -> None:
        """Fill heap and stack with random words, except for the structures that lead to the thread.

        Args:
            seed: Seed of the random numbers.
            density: Fraction of words that point into heap or stack.
        """
        chance = np.random.default_rng(seed)
        near = np.array([FREE, FREE, STACK, STACK + 0x8000, self.thread], np.uint64)
        odd = np.array([0, 1, (1 << 64) - 1, ENTRY << 48, MARK, HEAP + 4, 0xFFFF_FFFF], np.uint64)
        for memory, first in ((self.heap, FREE - HEAP), (self.stack, 0)):
            count = (len(memory) - first) // 8
            words = chance.choice(near, count) + chance.integers(0, 1 << 13, count, np.uint64) * np.uint64(8)
            nonsense = chance.random(count) >= density
            words[nonsense] = chance.choice(odd, count)[nonsense]
            memory[first:] = words.tobytes()

    def in_user_space(self) -> UserSpace:
        """Return the BPF program in user space with the memory and map entries for sampling this process."""
        said = UserSpace()
        said.memory(HEAP, HEAP + HEAP_BYTES, bytes(self.heap))
        low, high = (self.absent.start, self.absent.stop) if self.absent else (STACK + STACK_BYTES,) * 2
        said.memory(STACK, high, bytes(self.stack[: low - STACK]))
        if self.absent:
            said.memory(high, STACK + STACK_BYTES, bytes(self.stack[high - STACK :]))
        said.entry("layouts", 0, pack_offsets(self.offsets))
        said.entry("processes", PID, ring_buffer_records.PROCESS.pack(self.runtime, *(0,) * 4, *self.goroutines))
        said.constant("seeks_waiting", 1)
        said.constant("follows_tasks", 1)
        if self.stack_end:
            said.entry("threads", PID, ring_buffer_records.THREAD.pack(self.stack_end, 0, 0, 0))
        return said

    def sample(self, said: UserSpace, in_kernel: bool = False) -> None:
        """Sample the thread. Each register except sp contains its own number."""
        said.sample(PID, PID, [*range(7), self.sp, *range(8, 17)], in_kernel)
