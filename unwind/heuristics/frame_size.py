"""The distance of the frame pointer from sp, from a function's code.

A function allocates its frame once, after it pushes its caller's frame pointer. Its code shows the distance unless it
moves sp again (alloca, arrays of variable size, realigned frames).
"""

from __future__ import annotations

from pyprof.model.arch import Arch
from pyprof.model.arch_parts import Depth, FrameCode
from pyprof.records import dataclass
from pyprof.unwind.heuristics.call_evidence import MAX_FUNCTION, CallSites
from pyprof.unwind.return_address_check import SpaceCode

_ROOM = 1 << 15


@dataclass(frozen=True, slots=True)
class Room:
    """The possible distances from sp up to the frame pointer in a function, in bytes.

    Attributes:
        least: Lower bound of the distance.
        exact: Possible distances, empty if they are unknown.
        known: The function's prologue was recognized.
    """

    least: int = 0
    exact: tuple[int, ...] = ()
    known: bool = False


class FrameRoom:
    """The distances between sp and frame pointer in the functions of one address space, cached by pc."""

    def __init__(self, arch: Arch, code: SpaceCode, calls: CallSites) -> None:
        self._arch = arch
        self._code = code
        self._calls = calls
        self._known: dict[int, Room] = {}

    def find_distance(self, pc: int, lookup_pc: int, exact: bool) -> Room:
        """Return the distance between sp and the frame pointer in the frame at a pc.

        Args:
            pc: The frame's pc.
            lookup_pc: pc - 1 for a return address, else the pc.
            exact: The pc is not a return address.
        """
        if len(self._known) > _ROOM:
            self._known.clear()
        if pc not in self._known:
            self._known[pc] = self._find(pc, lookup_pc, exact)
        return self._known[pc]

    def _find(self, pc: int, lookup_pc: int, exact: bool) -> Room:
        frames = self._arch.calls.frame_code
        body = self._calls.find_body(lookup_pc, exact)
        if frames is None or body is None:
            return Room()
        start, end = body
        depth: Depth | None = None
        if pc - start <= MAX_FUNCTION:
            depth = frames.depth(self._code.read(start, min(end - start, MAX_FUNCTION)), pc - start)
        if depth is None:
            return Room()
        if not depth.fixed or end - start > MAX_FUNCTION:
            return Room(depth.least, known=True)
        arguments = (0,) if exact else self._arguments(frames, depth, pc)
        return Room(depth.least, tuple(depth.least + size for size in arguments), known=True)

    def _arguments(self, frames: FrameCode, depth: Depth, pc: int) -> tuple[int, ...]:
        """Return the possible sizes in bytes of arguments on the stack during a call that returns to pc."""
        popped = frames.popped(self._code.read(pc, 8))  # the bytes of the arguments or of the frame
        if depth.pushed:
            return (depth.pushed, popped) if popped not in (0, depth.pushed) else (depth.pushed,)
        return (popped, 0) if popped else (0,)
