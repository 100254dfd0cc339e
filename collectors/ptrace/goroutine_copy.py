"""The copy of a goroutine's stack, which a stopped thread of a Go program has left.

copy() is called while the thread is stopped. Only the memory that leads to the goroutine and its stack is read.
"""

from __future__ import annotations

import struct

import numpy as np

from pyprof.collectors.linux.libc import Gatherer
from pyprof.collectors.linux.regset import Regset
from pyprof.model.goroutine_pieces import make_goroutine_pieces
from pyprof.model.interpreter_state import GoroutineOffsets
from pyprof.model.sample_batch import Piece

_HEAD = 160
"""Number of bytes of a struct g that are read: stack bounds, m, sched, goid."""
_MAX_STACK = 256 << 10
_FS_BASE = 21
"""Index of the thread pointer in user_regs_struct (x86-64)."""
_HANDLER_BYTES = 16 << 10
"""Number of bytes of a signal handler's stack that are searched for references to the stack that it interrupted."""
_WORD = struct.Struct("=Q")
_BOUNDS = struct.Struct("=QQ")


class GoroutineCopy:
    """The goroutine of the thread that was stopped last.

    Attributes:
        own_end: End of the stack on which the thread is, 0 if Go does not know it.
    """

    def __init__(self) -> None:
        self._gather = Gatherer(1 << 20)
        self.clear()

    def clear(self) -> None:
        self.own_end = 0
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
        """Copy what is needed of the stacks that the thread has left.

        Args:
            stack: Copy of the stack on which the thread is.
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
        """Return the copied memory as pieces of the sample."""
        pieces = [Piece(base, data) for base, data in self._pieces]
        if pieces and self._goroutine:
            base, data = self._pieces[-1]
            pieces[-1:] = make_goroutine_pieces(self._goroutine, self._head, base, data)
        return pieces

    def _copy(self, bounds: range, first: int) -> None:
        size = min(bounds.stop - first, _MAX_STACK)
        if size > 0:
            self._pieces.append((first, bytes(self._gather([(first, size)]))))

    def _word(self, avma: int) -> int:
        data = self._gather([(avma, 8)]) if avma > 0 else b""
        return int(_WORD.unpack(data)[0]) if len(data) == 8 else 0

    def _bounds_of(self, goroutine: int) -> range:
        data = self._gather([(goroutine, 16)]) if goroutine else b""
        return range(*_BOUNDS.unpack(data)) if len(data) == 16 else range(0)


def _lowest(words: np.ndarray[tuple[int], np.dtype[np.uint64]], bounds: range, least: int) -> int:
    """Return the lowest address in a stack to which words refer, rounded down to a word; `least` if none is lower."""
    inside = words[(words >= bounds.start) & (words < bounds.stop)]
    return min(int(inside.min()), least) & ~7 if len(inside) else least & ~7
