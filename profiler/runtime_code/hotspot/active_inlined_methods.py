"""The inlined methods that are proven to be active at a sampled pc of compiled Java code.

HotSpot has debugging information for the pcs at which threads stop at safepoints: return addresses, polls and implicit
null checks. The pcs between them belong to any method that is inlined nearby. An option of the
virtual machine, or an agent that asks for compiled methods, adds information for the pcs between them.

A safepoint poll in a loop proves more: all pcs of the loop belong to the method of the poll, or to methods that it
calls.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch.x86_instructions import instruction_length
from pyprof.runtime_code.hotspot.methods import InlineScopes

MAX_CODE = 1 << 18
"""Maximum size in bytes of compiled Java code whose loops are searched."""
MIN_DENSE_PART = 4
"""Threshold for the test whether compiled code describes pcs between safepoints: more than one in MIN_DENSE_PART points
of its debugging information is no safepoint.
"""

_CALL = re.compile(
    rb"\xe8.{4}\Z|\xff[\x10-\x17\xd0-\xd7]\Z|\xff[\x50-\x57].\Z|\xff\x54..\Z|\xff[\x90-\x97\x15].{4}\Z", re.DOTALL
)
"""Pattern of a call that ends the text."""

Frame = tuple[int, tuple[int, ...]]
"""A Java method that is active at a pc: (address of its Method, possible bytecode indices). There is no index if the
place in the method is unknown.
"""
Loop = frozenset[int]
"""The instructions of a loop in compiled Java code, by their offsets in bytes."""


class SampledScopes:
    """The methods that are active at a lookup pc of one compiled Java method, as far as they are proven."""

    def __init__(self, scopes: InlineScopes, code: bytes, is_dense: bool) -> None:
        """Create the search for active methods in one compiled Java method. The code is decoded at the first lookup.

        Args:
            scopes: Debugging information of the compiled method.
            code: Machine code of the compiled method.
            is_dense: The virtual machine writes debugging information for the pcs between safepoints.
        """
        self._scopes, self._code, self._has_flag = scopes, code, is_dense
        self._flow: tuple[CodeFlow, bool] | None = None
        self._loops: list[tuple[int, Loop]] = []

    def find(self, offset: int) -> tuple[list[Frame], bool]:
        """Return (the Java methods that are active at a lookup pc, the innermost first; whether inlined methods may be
        missing).

        Args:
            offset: The lookup pc, relative to the code. The pc before a return address belongs to the call.
        """
        scopes = self._scopes
        place = bisect_right(scopes.pcs, offset)
        after = scopes.read_chain(place)
        exact: list[Frame] = [(method, (index,)) for method, index in after]
        if self._has_flag or (place < len(scopes.pcs) and scopes.pcs[place] == offset + 1 and self._is_return(offset)):
            return exact, False
        if place and scopes.pcs[place - 1] == offset and not self._is_return(offset - 1):
            here: list[Frame] = [(method, (index,)) for method, index in scopes.read_chain(place - 1)]
            return here, False
        before = scopes.read_chain(place - 1)
        if before == after or self.is_dense:
            return exact, False
        found = join_scopes(before, after) or [(method, ()) for method, _ in (after or before)[-1:]]
        found = max(found, self._find_loop_frames(offset), key=len)
        return found, len(found) < max(len(before), len(after))

    @property
    def is_dense(self) -> bool:
        """True if the code has debugging information for the pcs between safepoints."""
        return self._has_flag or self._read_flow()[1]

    def _read_flow(self) -> tuple[CodeFlow, bool]:
        """Return (the instructions of the code, whether its debugging information describes pcs between safepoints)."""
        if self._flow is None:
            pcs = self._scopes.pcs
            flow = read_flow(self._code)
            dense = is_dense(flow, pcs, {pc for pc in pcs if self._is_return(pc - 1)})
            self._loops = [] if dense else find_poll_loops(flow, pcs)
            self._flow = flow, dense
        return self._flow

    def _is_return(self, offset: int) -> bool:
        """Return True if the byte at an offset is the last one of a call."""
        return _CALL.search(self._code[max(offset - 5, 0) : offset + 1]) is not None

    def _find_loop_frames(self, offset: int) -> list[Frame]:
        """Return the active Java methods, by the smallest loop with a safepoint poll that contains an offset."""
        flow, scopes = self._read_flow()[0], self._scopes
        place = bisect_right(flow.starts, offset) - 1
        if place < 0:
            return []
        at = flow.starts[place]
        poll = next((poll for poll, loop in self._loops if at in loop), None)
        if poll is None:
            return []
        chain = scopes.read_chain(bisect_left(scopes.pcs, poll))
        return [(method, (index,) if number else ()) for number, (method, index) in enumerate(chain)]


@dataclass(frozen=True, slots=True)
class CodeFlow:
    """The instructions of compiled Java code, as far as the search for loops needs them.

    Attributes:
        starts: Offsets of the instructions, ascending; empty if the code is too large.
        polls: Offsets of the instructions that poll for safepoints.
        odd: Offsets of the instructions at which no safepoint can be.
        branches: Target of each jump inside the code by the offset of the jump.
        ends: Offsets of instructions after which the next one is not executed.
    """

    starts: tuple[int, ...]
    polls: frozenset[int]
    odd: frozenset[int]
    branches: Mapping[int, int]
    ends: frozenset[int]


def read_flow(code: bytes) -> CodeFlow:
    """Decode compiled Java code of x86-64 from its first byte on. Bytes that are no instruction are skipped."""
    starts: list[int] = []
    polls, odd, ends = set(), set(), set()
    branches: dict[int, int] = {}
    at, size = 0, len(code) if len(code) <= MAX_CODE else 0
    while at < size:
        length = instruction_length(code, at, wide=True)
        text = code[at : at + length]
        bare = text[1:] if text and text[0] & 0xF0 == 0x40 else text
        starts.append(at)
        after = at + (length or 1)
        opcode, kind = bare[:1].hex(), bare[1] >> 3 & 7 if len(bare) > 1 else 0
        jump = 4 if opcode == "e9" or (bare[:1] == b"\x0f" and bare[1] & 0xF0 == 0x80) else 0
        jump = jump or (1 if opcode == "eb" or opcode[:1] == "7" else 0)
        if jump:
            branches[at] = after + int.from_bytes(text[-jump:], "little", signed=True)
        if opcode in ("e9", "eb", "c3", "f4") or (opcode == "ff" and kind == 4):
            ends.add(at)
        if opcode == "85" and bare[1] & 0xF8 == 0 and text[0] & 0xF4 != 0x44:  # test %eax,(address)
            polls.add(at)
        elif opcode not in ("f7", "0f") and (jump or opcode[:1] == "5" or (len(bare) > 1 and bare[1] >= 0xC0)):
            odd.add(at)
        at = after
    return CodeFlow(tuple(starts), frozenset(polls), frozenset(odd), branches, frozenset(ends))


def is_dense(flow: CodeFlow, pcs: Sequence[int], returns: Set[int]) -> bool:
    """Return True if compiled Java code has debugging information between safepoints.

    Args:
        flow: The instructions of the code.
        pcs: Offsets of the points with debugging information.
        returns: Those of `pcs` that are return addresses.
    """
    between = sum(pc in flow.odd and pc not in returns for pc in pcs)
    return between * MIN_DENSE_PART > len(pcs)


def find_poll_loops(flow: CodeFlow, pcs: Sequence[int]) -> list[tuple[int, Loop]]:
    """Find the loops of compiled Java code that poll for safepoints. Return (offset of a poll, the innermost loop
    around it) of each, the smallest loop first.

    Every cycle through a poll has a jump back over the poll. The shortest of these jumps belongs to the innermost loop
    if all others enclose it. Polls for which that does not hold are left out.

    Args:
        flow: The instructions of the code.
        pcs: Offsets of the points with debugging information.
    """
    polls = [pc for pc in pcs if pc in flow.polls]
    if not polls:
        return []
    after: dict[int, list[int]] = {}
    before: dict[int, list[int]] = {}
    following = [each for each in zip(flow.starts, flow.starts[1:], strict=False) if each[0] not in flow.ends]
    for at, target in (*following, *flow.branches.items()):
        after.setdefault(at, []).append(target)
        before.setdefault(target, []).append(at)
    found = []
    for poll in polls:
        spans = sorted(
            ((target, at) for at, target in flow.branches.items() if target <= poll <= at),
            key=lambda span: span[1] - span[0],
        )
        if spans and all(low <= spans[0][0] and spans[0][1] <= high for low, high in spans):
            loop = _reach(after, poll, spans[0]) & _reach(before, poll, spans[0])
            if len(loop) > 1:
                found.append((poll, loop))
    return sorted(found, key=lambda each: len(each[1]))


def _reach(edges: Mapping[int, Sequence[int]], start: int, span: tuple[int, int]) -> Loop:
    """Return the instructions that control flow edges reach from an instruction, without those outside a range of
    offsets.
    """
    found, left = {start}, [start]
    while left:
        for at in edges.get(left.pop(), ()):
            if span[0] <= at <= span[1] and at not in found:
                found.add(at)
                left.append(at)
    return frozenset(found)


def join_scopes(first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]]) -> list[Frame]:
    """Return the methods that two points of debugging information have in common, the innermost one first.

    Args:
        first: (address of the Method, bytecode index) at one point, the innermost one first.
        second: The same at the other point.
    """
    found: list[Frame] = []
    for (method, index), (other, other_index) in zip(reversed(first), reversed(second), strict=False):
        if method != other:
            break
        found.append((method, (index, other_index)))
        if index != other_index:
            break
    return found[::-1]
