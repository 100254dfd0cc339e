"""Evidence of whether the call before a return address calls the function of the callee's frame.

A direct call of that function proves the return address, also through a PLT entry or a function that jumps to it. A
direct call of another function refutes it. An indirect call does neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.unwind.heuristics.rules_and_checks_from_code import SpaceCode, Verdict
from pyprof.unwind.rule_lookup import SpaceIndex

MAX_FUNCTION = 64 << 10
"""Maximum size in bytes of a function whose code is examined for its frame and its calls."""

MAX_SEARCHED = 16 << 10
"""Maximum number of bytes of a function that are searched for tail jumps."""

MAX_HOPS = 4
"""Maximum number of jumps that are followed from one PLT entry or function to the next."""

MAX_FOLLOWED = 8
"""Maximum number of functions that are followed from one call through tail jumps to find its real target."""

MAX_SCANNED = 64
"""Maximum number of functions that are searched for jumps while one sample is unwound."""

_NEAR = 4096
_ROOM = 1 << 15

Span = tuple[int, int]


class CallEvidence(IntEnum):
    """The degree of evidence that the call before a return address has called the function of the next inner frame."""

    REFUTED = 0
    ALLOWED = 1  # an indirect call, or one whose target is not known
    PROVED = 2


class CallSites:
    """The calls in the code of one address space, by which return addresses are judged. begin_search() starts a new
    budget of work.
    """

    def __init__(self, arch: Arch, space: AddressSpace, code: SpaceCode, index: SpaceIndex) -> None:
        self._arch = arch
        self._space = space
        self._code = code
        self._index = index
        self._left = 0
        self._targets: dict[int, int | None] = {}
        self._entries: dict[int, Span | None] = {}
        self._outward: dict[int, Sequence[int | None]] = {}
        self._jumped: dict[tuple[int, int], CallEvidence] = {}
        self._allowed: dict[tuple[int, int], bool] = {}

    def begin_search(self) -> None:
        """Renew the limit on the number of functions that may be searched for jumps, and clear caches that are full."""
        self._left = MAX_SCANNED
        for known in (self._targets, self._entries, self._outward, self._jumped, self._allowed):
            if len(known) > _ROOM:
                known.clear()

    def call_evidence(self, ra: int, pc: int, exact: bool) -> CallEvidence:
        """Return the evidence that the call before a return address has called the function which covers a pc.

        Args:
            ra: The return address.
            pc: Lookup pc of the callee's frame.
            exact: The pc is not a return address.
        """
        if self._code.classify_return_address(ra) is not Verdict.YES:
            return CallEvidence.REFUTED
        target = self._target(ra)
        if target is None:
            return CallEvidence.ALLOWED
        entry = self.find_entry(pc, exact)
        if entry is None:
            return CallEvidence.ALLOWED
        if entry[0] <= target <= entry[1]:
            return CallEvidence.PROVED
        return self._through_jumps(target, pc, exact)

    def proves_call(self, ra: int, pc: int, exact: bool) -> bool:
        """Return True if the call before the return address `ra` certainly calls the function that covers a lookup pc.

        Each call of this method has its own limit on the functions that are searched.
        """
        self.begin_search()
        return self.call_evidence(ra, pc, exact) is CallEvidence.PROVED

    def allows_call(self, ra: int, pc: int, exact: bool) -> bool:
        """Return True if the call before `ra` may have called the function that covers the lookup pc.

        The kernel's signal trampoline calls a handler without a call instruction. Results are cached.
        """
        function = self._index.function_start(pc, exact)
        key = ra, pc if function is None else function
        known = self._allowed.get(key)
        if known is None:
            self.begin_search()
            known = self._allowed[key] = self.call_evidence(
                ra, pc, exact
            ) is not CallEvidence.REFUTED or self._is_trampoline(ra)
        return known

    def _is_trampoline(self, ra: int) -> bool:
        known = self._index.find_rule(ra - 1, False) if ra else None
        return known is not None and known.rule.signal

    def find_entry(self, pc: int, exact: bool) -> Span | None:
        """Return the lowest and the highest address at which the function that covers a lookup pc may begin.

        Both are equal if an unwind table gives the address. Otherwise they come from the code before the pc.
        """
        if pc not in self._entries:
            start = self._index.function_start(pc, exact)
            self._entries[pc] = (start, start) if start is not None else self._entry_before(pc)
        return self._entries[pc]

    def _entry_before(self, pc: int) -> Span | None:
        """Return the last address before pc at which a function begins by saving and setting the frame pointer, for
        code without an unwind table.
        """
        frames = self._arch.calls.frame_code
        mapping = self._space.mapping_at(pc)
        if frames is None or mapping is None:
            return None
        size = _NEAR
        while size <= MAX_FUNCTION:
            first = max(pc - size, mapping.start)
            found = list(frames.entries(self._code.read(first, pc - first)))
            if found:
                return first + found[-1][0], first + found[-1][1]
            size *= 4
        return None

    def _target(self, ra: int) -> int | None:
        """Return the target of the call before a return address, or None if it is unknown."""
        if ra not in self._targets:
            self._targets[ra] = self._find_target(ra)
        return self._targets[ra]

    def _find_target(self, ra: int) -> int | None:
        target = self._code.call_target(ra)
        if target is None:
            frames = self._arch.calls.frame_code
            slot = frames.called_slot(self._code.read(ra - 8, 8), ra) if frames is not None else None
            target = self._pointer(slot)
        return None if target is None else self._beyond(target)

    def _beyond(self, target: int) -> int | None:
        """Return the address that control reaches from a target through PLT entries and other jumps, or None if it is
        unknown.
        """
        frames = self._arch.calls.frame_code
        for _ in range(MAX_HOPS):
            code = self._code.read(target, 24)
            if not code:
                return None
            if not self._arch.calls.jumps(code[:16]):
                return target
            if frames is None:
                return None
            slot = frames.jumped_slot(code, target)
            following = self._pointer(slot) if slot is not None else frames.jump(code, target)
            if following is None:
                return None
            target = following
        return None

    def _pointer(self, slot: int | None) -> int | None:
        """Return the function to which a slot of the GOT points, None if unknown.

        The dynamic linker fills the slot at the first call and does not change it later.
        """
        size = self._arch.word
        data = self._space.read(slot, size) if slot is not None else b""
        if len(data) < size:
            return None
        found = int.from_bytes(data, "little" if self._arch.byteorder == "little" else "big")
        return found if self._code.is_executable(found) else None

    def find_body(self, pc: int, exact: bool) -> Span | None:
        """Return (start, end) of the function that covers a lookup pc. Without a table the end is just after the pc."""
        known = self._index.function_range(pc, exact)
        if known is not None:
            return known
        entry = self.find_entry(pc, exact)
        return None if entry is None else (entry[1], pc + 1)

    def _through_jumps(self, target: int, pc: int, exact: bool) -> CallEvidence:
        """Return the evidence that the called function at `target` reaches the function that covers pc by tail
        jumps.
        """
        body = self.find_body(pc, exact)
        if body is None:
            return CallEvidence.ALLOWED
        key = target, body[0]
        if key not in self._jumped:
            if self._left <= 0:
                return CallEvidence.ALLOWED
            self._jumped[key] = self._search(target, (self.find_entry(pc, exact) or body)[0], body[1])
        return self._jumped[key]

    def _search(self, target: int, low: int, high: int) -> CallEvidence:
        """Return the evidence that the function at `target` jumps to an address in low..high, directly or through other
        functions.

        A jump may enter the middle of a function: GCC places cold parts of a function apart from the rest.
        """
        if self._arch.calls.frame_code is None:
            return CallEvidence.REFUTED
        seen: set[int] = set()
        waiting = [target]
        found = CallEvidence.REFUTED
        while waiting:
            start = waiting.pop()
            if start in seen:
                continue
            if len(seen) >= MAX_FOLLOWED or self._left <= 0:
                return CallEvidence.ALLOWED
            seen.add(start)
            for goes in self._jumps_of(start):
                function = None if goes is None else self._jumped_function(goes)
                if goes is None:
                    found = CallEvidence.ALLOWED
                elif low <= goes < high or (function is not None and low <= function < high):
                    return CallEvidence.PROVED
                elif function is not None:
                    waiting.append(function)
        return found

    def _jumps_of(self, start: int) -> Sequence[int | None]:
        """Return the targets of jumps that leave the function at an address; None stands for a jump with unknown
        target.
        """
        if start not in self._outward:
            self._left -= 1
            frames, code = self._arch.calls.frame_code, self._function_code(start)
            assert frames is not None
            whole = 0 < len(code) < MAX_SEARCHED
            goes = {at for at in frames.jumps(code, start) if at is None or not start <= at < start + len(code)}
            self._outward[start] = tuple(goes if whole else goes | {None})
        return self._outward[start]

    def _jumped_function(self, goes: int) -> int | None:
        """Return the function that a jump leads to, or None if no function begins there."""
        if not self._code.is_executable(goes):
            return None
        if self._arch.calls.jumps(self._code.read(goes, 16)):
            return self._beyond(goes)
        return goes if self._index.function_start(goes, True) == goes else None

    def _function_code(self, start: int) -> bytes:
        known = self._index.function_range(start, True)
        if known is not None and known[0] == start:
            return self._code.read(start, min(known[1] - start, MAX_SEARCHED))
        frames = self._arch.calls.frame_code
        code = self._code.read(start, _NEAR)
        if frames is None:
            return code
        return code[: next((push for least, push in frames.entries(code) if least > 0), len(code))]
