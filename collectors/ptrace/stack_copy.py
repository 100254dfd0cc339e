"""The copy of a thread's stack, of a goroutine's stack, and of the memory with an interpreter's frames.

copy_stack() is called while the thread is stopped. It reads into memory that was allocated before, and raises no
exception.

A stopped thread of a Go program may have left the stack of its goroutine, which is then copied as well. Only
the memory that leads to the goroutine and its stack is read.
"""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import numpy as np

from pyprof.collectors.batch_builder import ArenaMemory, BatchBuilder, Lane
from pyprof.collectors.linux import libc
from pyprof.collectors.linux.libc import Gatherer
from pyprof.collectors.linux.stopped_registers import Regset
from pyprof.collectors.native.sampling_loop_bindings import SampleRow
from pyprof.collectors.ptrace.deep_stack import pieces
from pyprof.collectors.ptrace.native_sampling_data import FramesRead
from pyprof.collectors.ptrace.sampled_thread import RED_ZONE, Thread
from pyprof.collectors.targets.address_spaces import MapsEvidence, SpaceTracker
from pyprof.model.interpreter_reader_protocols import GoroutineOffsets
from pyprof.model.sample_batch import Piece, SampleKind, StackBeyondCopy, make_goroutine_pieces, read_goroutine_labels
from pyprof.model.thread_identity import Labels
from pyprof.problem_counters import Diagnostics

_HEAD = 160
"""Number of bytes of Go's struct g (a goroutine) that are read: stack bounds, m, sched, goid."""
_MAX_STACK = 256 << 10
_FS_BASE = 21
"""Index of the thread pointer in user_regs_struct (x86-64)."""
_HANDLER_BYTES = 16 << 10
"""Number of bytes of a signal handler's stack that are searched for addresses in the stack that the signal
interrupted.
"""
_WORD = struct.Struct("=Q")
_BOUNDS = struct.Struct("=QQ")


class GoroutineCopy:
    """The goroutine that the last stopped thread ran, and copies of its stack.

    Attributes:
        own_end: End of the stack on which the thread is, 0 if Go does not know that stack.
        labels: Labels of the goroutine (runtime/pprof), None if they could not be read.
    """

    def __init__(self) -> None:
        self._gather = Gatherer(1 << 20)
        self.clear()

    def clear(self) -> None:
        self.own_end = 0
        self.labels: Labels | None = ()
        self._goroutine = 0
        self._head = b""
        self._saved = 0
        self._registers: list[int] = []
        self._bounds = self._scheduler = range(0)
        self._is_handler = False
        self._pieces: list[tuple[int, bytes]] = []

    def find(self, tid: int, offsets: GoroutineOffsets, regset: Regset) -> None:
        """Find the goroutine of a stopped thread, and the end of the stack on which the thread is.

        Args:
            tid: The thread.
            offsets: Offsets of the process's Go runtime.
            regset: The thread's registers.
        """
        self.clear()
        if regset.arch.name != "x86_64":
            return
        self._gather.start_reads(tid)
        self._registers, sp = list(regset.words), regset.sp
        pointer = self._registers[_FS_BASE]
        m = self._word(self._word(pointer + offsets.tls) + offsets.m)
        g0, gsignal, goroutine = (self._word(m + at) if m else 0 for at in (offsets.g0, offsets.gsignal, offsets.curg))
        head = bytes(self._gather([(goroutine, _HEAD)])) if goroutine else b""
        if len(head) == _HEAD:
            self._goroutine, self._head = goroutine, head
            (self._saved,) = _WORD.unpack_from(head, offsets.sched)
            self._bounds = range(*_BOUNDS.unpack_from(head))
            if offsets.labels:
                self.labels = read_goroutine_labels(self._read, self._word(goroutine + offsets.labels))
            if sp in self._bounds:
                self.own_end = self._bounds.stop
                return
        self._scheduler = self._bounds_of(g0)
        if sp in self._scheduler:
            if self._word(pointer) != pointer:  # else it has the stack of a C thread, and Go knows only a part of that
                self.own_end = self._scheduler.stop
            return
        handler = self._bounds_of(gsignal)
        if sp in handler:
            self.own_end, self._is_handler = handler.stop, True

    def copy_left_stacks(self, stack: memoryview) -> None:
        """Copy those parts of other stacks that a walk may need, because the thread has left them: the stack
        of its goroutine, or the one that a signal interrupted.

        Args:
            stack: Copy of the stack on which the thread runs.
        """
        if not self._goroutine and not self._is_handler:
            return
        if self._head and self.own_end == self._bounds.stop:
            return
        used = min(len(stack), _HANDLER_BYTES) & ~7 if self._is_handler else 0
        words = np.frombuffer(stack, np.uint64, used // 8)
        if self._is_handler:
            self._copy(self._scheduler, _lowest(words, self._scheduler, self._scheduler.stop))
        if self._goroutine:
            first = self._saved if self._saved in self._bounds else self._bounds.stop
            first = min([first, *(each for each in self._registers if each in self._bounds)])
            self._copy(self._bounds, _lowest(words, self._bounds, first))

    def take_pieces(self) -> list[Piece]:
        """Return the copies of stacks that the thread has left, as pieces of the sample."""
        pieces = [Piece(base, data) for base, data in self._pieces]
        if pieces and self._goroutine:
            base, data = self._pieces[-1]
            pieces[-1:] = make_goroutine_pieces(self._goroutine, self._head, base, data)
        return pieces

    def _copy(self, bounds: range, first: int) -> None:
        size = min(bounds.stop - first, _MAX_STACK)
        if size > 0:
            self._pieces.append((first, bytes(self._gather([(first, size)]))))

    def _read(self, avma: int, size: int) -> bytes:
        return bytes(self._gather([(avma, size)])) if avma > 0 else b""

    def _word(self, avma: int) -> int:
        data = self._read(avma, 8)
        return int(_WORD.unpack(data)[0]) if len(data) == 8 else 0

    def _bounds_of(self, goroutine: int) -> range:
        data = self._gather([(goroutine, 16)]) if goroutine else b""
        return range(*_BOUNDS.unpack(data)) if len(data) == 16 else range(0)


def _lowest(words: np.ndarray[tuple[int], np.dtype[np.uint64]], bounds: range, least: int) -> int:
    """Return the lowest address within `bounds` among the words, or `least` if none is lower, rounded down to
    a multiple of 8.
    """
    inside = words[(words >= bounds.start) & (words < bounds.stop)]
    return min(int(inside.min()), least) & ~7 if len(inside) else least & ~7


_SCAN = 64 << 10
_FRAMES = 1 << 20
"""Number of bytes of memory for the interpreter frames of one sample."""
_SPOT_BYTES = 256 << 10


class StackCopy:
    """The copy of the stack of the last stopped thread, in the unused part of the batch builder's memory.

    If the thread is on another stack than its home stack (on which it usually runs), there is a second copy with a part
    of the home stack.
    """

    def __init__(
        self, ptrace: libc.PtraceCalls, builder: BatchBuilder[ArenaMemory], diagnostics: Diagnostics, stack_size: int
    ) -> None:
        """Allocate the memory for stack copies. `stack_size` is the maximum size of a copy in bytes (--stack-size)."""
        self._ptrace = ptrace
        self._builder = builder
        self._diagnostics = diagnostics
        self._memory = builder.memory
        self._arena = memoryview(builder.memory.bytes)
        self._gather = libc.Gatherer(max(_FRAMES, stack_size))
        self._base = self._size = 0
        self._piece_base = self._piece_size = 0
        self._goroutine = GoroutineCopy()
        self._length = 0
        self._spans: list[tuple[int, int]] = []
        self._spots = libc.Gatherer(_SPOT_BYTES)
        self._spotted = memoryview(b"")

    def clear(self) -> None:
        """Discard the stack that was copied last."""
        self._size = self._piece_size = self._length = 0
        self._goroutine.clear()

    def copy_stack(self, thread: Thread, spaces: SpaceTracker, sp: int, regset: Regset | None = None) -> None:
        """Copy a thread's stack, and the memory with its interpreter frames.

        Args:
            thread: The thread.
            spaces: Address spaces of its process.
            sp: The thread's stack pointer.
            regset: Its registers, None if it is not stopped.
        """
        goroutines = thread.reader.goroutines if thread.reader is not None and regset is not None else None
        if goroutines is not None and regset is not None:
            self._goroutine.find(thread.tid, goroutines, regset)
        self._copy(thread, spaces, sp)
        if goroutines is not None:
            used = self._memory.used
            stack = self._arena[used : used + self._size]
            self._goroutine.copy_left_stacks(stack)
        if thread.reader is not None:
            self._copy_frames(thread)

    def _copy_frames(self, thread: Thread) -> None:
        assert thread.reader is not None
        used = self._memory.used
        stack = self._arena[used : used + (self._size & ~7)].cast("Q")
        self._gather.start_reads(thread.tid)
        try:
            thread.reader.copy(thread.tid, stack, self._base, self._gather)
        except Exception:  # noqa: BLE001 - the thread is stopped and must be resumed
            self._reader_failed(thread)

    def take_frames(self, thread: Thread, lane: int, came: SampleRow, offset: int, read: FramesRead) -> None:
        """Decode the interpreter frames of a sample that the compiled sampling loop took, and add them to the
        sample.

        Args:
            thread: The thread.
            lane: Number of the sample in the batch.
            came: Row that the compiled sampling loop filled.
            offset: Offset of the stack copy in the builder's memory.
            read: Interpreter data that the compiled sampling loop has read.
        """
        if thread.reader is None:
            return
        stack = self._arena[offset : offset + (came.size & ~7)].cast("Q")
        self._gather.start_reads(thread.tid)
        try:
            thread.reader.copied_ahead(thread.tid, read.plan, stack, came.base, read.gather, self._gather)
            chain = thread.reader.take_chain()
        except Exception:  # noqa: BLE001 - the thread is stopped and must be resumed
            self._reader_failed(thread)
        else:
            if chain is not None:
                self._builder.set_chain(lane, chain)

    def warm_up(self, thread: Thread, spaces: SpaceTracker, sp: int) -> None:
        """Copy a thread's stack before the thread is stopped. Caches and the plan for interpreter data are
        then ready for the copy in the stop.
        """
        self.copy_stack(thread, spaces, sp)
        if thread.reader is not None:
            try:
                thread.reader.learn()
            except Exception:  # noqa: BLE001 - the thread is stopped and must be resumed
                self._reader_failed(thread)

    def _reader_failed(self, thread: Thread) -> None:
        """Read no interpreter frames of a thread any more, because their reader raised an exception. Sampling
        continues, because the native stack is valid.
        """
        self._diagnostics.count("interpreter_reader_failed")
        thread.reader = None

    def _copy(self, thread: Thread, spaces: SpaceTracker, sp: int) -> None:
        """Copy a thread's stack into the builder's memory. Store where the copy is in `_base` and `_size`,
        and where a copy of its home stack is in `_piece_base` and `_piece_size`.
        """
        memory, ptrace, shape = self._memory, self._ptrace, thread.shape
        into = memory.address + memory.used
        self._length = 0
        if self._goroutine.own_end:
            self._base = max(sp - RED_ZONE, 0) & ~7
            size = self._goroutine.own_end - self._base
        else:
            self._base, size = shape.length(sp, spaces.find_region)
        if size > shape.most:
            size = self._begin_deep(thread, size)
        got = ptrace.read_memory(thread.tid, self._base, size, into)
        if got <= 0 and self._base < sp:  # the red zone extends into an unmapped page
            size -= (sp & ~7) - self._base
            self._base = sp & ~7
            got = ptrace.read_memory(thread.tid, self._base, size, into)
        self._size = max(got, 0)
        self._piece_size = 0
        if self._length:
            self._look_beyond(thread)
        if self._size == 0 or self._goroutine.own_end or shape.is_home(sp, spaces.find_region):
            return
        home = shape.occupied
        if home is None:
            return
        word = thread.arch.word
        words = np.frombuffer(memory.bytes, f"u{word}", min(self._size, _SCAN) // word, memory.used)
        into_home = words[(words >= home.start) & (words < home.end)]
        if len(into_home):
            self._piece_base, size = shape.home_span(int(into_home.min()))
            got = ptrace.read_memory(thread.tid, self._piece_base, size, into + ((self._size + 7) & ~7))
            self._piece_size = max(got, 0)

    def _begin_deep(self, thread: Thread, length: int) -> int:
        """Store the length of a deep stack, that is one longer than the limit for copies. Return how many
        bytes of it to copy.

        For a thread with an interpreter that is the limit. For others it is less while the outer part of the stack is
        known from an earlier copy.
        """
        self._length = length
        most = thread.shape.most
        return most if thread.reader is not None else thread.deep.choose_copy(self._base, most)

    def _look_beyond(self, thread: Thread) -> None:
        self._spotted = memoryview(b"")
        if self._size:
            self._spans = thread.deep.choose_ranges(self._base + self._size, self._base + self._length)
            self._spots.start_reads(thread.tid)
            self._spotted = self._spots(self._spans)

    def _beyond(self, thread: Thread) -> StackBeyondCopy:
        """Return what is known about the outer part of the deep stack that was just copied, and read it if
        necessary. The thread runs again when this is called.
        """
        deep, word = thread.deep, thread.arch.word
        deep.longest = max(deep.longest, self._length)
        spots = pieces(self._spans, self._spotted)
        if deep.is_joined(self._base, self._size):
            return StackBeyondCopy(self._length, deep.outer, spots, deep.longest)
        if not self._size or not deep.can_read_rest(self._length):
            return StackBeyondCopy(self._length, longest=deep.longest)
        used = self._memory.used
        deep.read_beyond(
            self._ptrace, thread.tid, self._base, self._arena[used : used + self._size], self._length, word
        )
        return StackBeyondCopy(self._length, deep.outer, spots, deep.longest)

    def add_lane(
        self, kind: SampleKind, thread: Thread, spaces: SpaceTracker, weight: int, at_ns: int, evidence: MapsEvidence
    ) -> int:
        """Add the latest stack copy to the batch as a sample, and return the sample's index in the batch.

        `evidence` has facts about the process's mappings during the stop, which decide to which address space
        the sample belongs.
        """
        if evidence.text or evidence.changed:
            with suppress(OSError):  # the process may have ended since
                for earlier, space in spaces.refresh_space(time.monotonic_ns, force=True, text=evidence.text):
                    self._builder.move_to_space(earlier, space)
        builder = self._builder
        beyond = self._beyond(thread) if self._length else None
        piece_at = self._memory.used + ((self._size + 7) & ~7)
        made = Lane(thread.arch, kind, at_ns, thread.pid, thread.tid, spaces.current, weight, thread.started)
        lane = builder.add_sample(made, self._base, self._size)
        if beyond is not None:
            builder.set_beyond(lane, beyond)
        if self._piece_size:
            data = bytes(self._memory.bytes[piece_at : piece_at + self._piece_size])
            builder.add_pieces(lane, (Piece(self._piece_base, data),))
        left = self._goroutine.take_pieces()
        if left:
            builder.add_pieces(lane, left)
        if self._goroutine.labels is None:
            self._diagnostics.count("goroutine_labels_unreadable")
        elif self._goroutine.labels:
            builder.set_labels(lane, self._goroutine.labels)
        if thread.reader is not None:
            try:
                chain = thread.reader.take_chain()
            except Exception:  # noqa: BLE001 - the thread is stopped and must be resumed
                self._reader_failed(thread)
            else:
                if chain is not None:
                    builder.set_chain(lane, chain)
        return lane

    def add_empty_lane(self, thread: Thread, spaces: SpaceTracker, weight: int, at_ns: int) -> int:
        """Add to the batch a sample without a stack, which means that the thread's last sample is repeated.
        Return its index in the batch.
        """
        made = Lane(
            thread.arch, SampleKind.UNCHANGED, at_ns, thread.pid, thread.tid, spaces.current, weight, thread.started
        )
        return self._builder.add_sample(made, 0, 0)

    def is_same_copy(self, earlier: bytes) -> bool:
        """Return True if the current stack copy, which is in no sample yet, equals an earlier one with the same base.

        The kernel stores a thread's processor above its frames. That may differ although the thread did not run.
        """
        size = min(self._size, len(earlier)) & ~7
        now = np.frombuffer(self._memory.bytes, np.uint64, size // 8, self._memory.used)
        before = np.frombuffer(earlier, np.uint64, size // 8)
        differ = np.flatnonzero(now != before).tolist()
        return size > 0 and (not differ or _is_rseq(differ, int(now[differ[0]]), int(before[differ[0]])))


def _is_rseq(differ: list[int], now: int, before: int) -> bool:
    """Return True if two stack copies differ only in those words of struct rseq (linux/rseq.h) that name the processor.

    The first of these words has cpu_id_start and cpu_id, the fourth has node_id and mm_cid.

    Args:
        differ: Indices of the differing words.
        now: The first differing word in the present copy.
        before: The same word in the earlier copy.
    """
    first = differ[0]
    return differ in ([first], [first, first + 3]) and all(word >> 32 == word & 0xFFFF_FFFF for word in (now, before))
