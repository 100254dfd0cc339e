"""The distance of the frame pointer from sp, from a function's code.

In: a frame that has a frame record. Out: Room. A function allocates its frame once, after the push of its caller's
frame pointer. Unless it moves sp again (alloca, arrays of variable size, realigned frames), the distance is in its
code.
"""

from __future__ import annotations

from pyprof.model.arch import Arch
from pyprof.model.arch_parts import Depth, FrameCode
from pyprof.records import dataclass
from pyprof.unwind.code import SpaceCode
from pyprof.unwind.heuristics.calls import MOST_FUNCTION, CallSites

_ROOM = 1 << 15


@dataclass(frozen=True, slots=True)
class Room:
    """least: bytes from sp to the frame pointer, at least. exact: what it may be; empty where that is not known.

    known: the function's prologue is.
    """

    least: int = 0
    exact: tuple[int, ...] = ()
    known: bool = False


class FrameRoom:
    """Rooms of the functions of one address space."""

    def __init__(self, arch: Arch, code: SpaceCode, calls: CallSites) -> None:
        self._arch = arch
        self._code = code
        self._calls = calls
        self._known: dict[int, Room] = {}

    def at(self, pc: int, lookup_pc: int, exact: bool) -> Room:
        """The room of the frame at pc."""
        if len(self._known) > _ROOM:
            self._known.clear()
        if pc not in self._known:
            self._known[pc] = self._find(pc, lookup_pc, exact)
        return self._known[pc]

    def _find(self, pc: int, lookup_pc: int, exact: bool) -> Room:
        frames = self._arch.calls.frame_code
        body = self._calls.body(lookup_pc, exact)
        if frames is None or body is None:
            return Room()
        start, end = body
        depth: Depth | None = None
        if pc - start <= MOST_FUNCTION:
            depth = frames.depth(self._code.read(start, min(end - start, MOST_FUNCTION)), pc - start)
        if depth is None:
            return Room()
        if not depth.fixed or end - start > MOST_FUNCTION:
            return Room(depth.least, known=True)
        arguments = (0,) if exact else self._arguments(frames, depth, pc)
        return Room(depth.least, tuple(depth.least + size for size in arguments), known=True)

    def _arguments(self, frames: FrameCode, depth: Depth, pc: int) -> tuple[int, ...]:
        """How many bytes of arguments may be on the stack in a call that returns to pc."""
        popped = frames.popped(self._code.read(pc, 8))  # they, or the frame
        if depth.pushed:
            return (depth.pushed, popped) if popped not in (0, depth.pushed) else (depth.pushed,)
        return (popped, 0) if popped else (0,)
