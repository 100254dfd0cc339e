"""Unwind rules for HotSpot's generated code on x86-64, from what the virtual machine states and from the code itself.

A compiled method has a frame of fixed size, with the return address at its top and the caller's rbp below it:

    cfa = sp + size; ra = [cfa - 8]; fp = [cfa - 16]

Its code begins and ends its frames by a few known instructions; each of them is a row. An interpreter frame is linked
by rbp, and states the caller's sp, because the callee's local variables lie on the caller's operand stack:

    cfa = fp + 16; ra = [cfa - 8]; fp = [cfa - 16]; sp = [cfa - 24]

Until the entry of a method has built that frame, the caller's sp is in r13 (MacroAssembler, "sender sp").
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from pyprof.lazy_dataclasses import dataclass
from pyprof.model.arch import Arch
from pyprof.runtime_code.hotspot.code_cache import Blob
from pyprof.unwind.rules import UNDEFINED, FunctionRows, RegKind, RegRule, Rule

_PUSHED = re.compile(rb"\x55(?:\x48\x8b\xec)?(?:\x48\x83\xec(.)|\x48\x81\xec(.{4}))", re.DOTALL)
"""Pattern of a HotSpot prologue: push %rbp [; mov %rsp,%rbp]; sub $n,%rsp."""
_STORED = re.compile(rb"\x48\x81\xec(.{4})(?:\x48\x89\x2c\x24|\x48\x89\x6c\x24.|\x48\x89\xac\x24.{4})", re.DOTALL)
"""Pattern of a HotSpot prologue: sub $n,%rsp; mov %rbp,m(%rsp)."""
_REMOVED = re.compile(rb"(?:\x48\x83\xc4(.)|\x48\x81\xc4(.{4}))\x5d", re.DOTALL)
"""Pattern of a HotSpot epilogue: add $n,%rsp; pop %rbp."""
_RETURN = re.compile(
    rb"(?:\xc5\xf8\x77)?(?:\x49\x3b(?:\xa7.{4}|\x67.)\x0f\x87(.{4})|\x4d\x8b\x97.{4}\x41\x85\x02|\x85\x05.{4})?\xc3",
    re.DOTALL,
)
"""Pattern of a return in HotSpot's code: [vzeroupper] [the poll of a safepoint] ret."""
_JUMP = re.compile(rb"(?:\xc5\xf8\x77)?(?:\xe9.{4}|\x41?\xff[\xe0-\xe7])", re.DOTALL)
_LEFT = re.compile(
    rb"\xc9(?:\xc5\xf8\x77)?(?:\x49(?:\x83\x7f.\x00|\x81\x7f.\x00{4})\x0f\x85.{4})?(?:\xc3|\xe9.{4})", re.DOTALL
)
"""Pattern of a HotSpot epilogue: leave; [is an exception pending?] ret."""
_POLL_STUB = re.compile(rb"(?:\x49\xba.{8}|\x4c\x8d\x15.{4})\x4d\x89\x97.{4}\xe9.{4}", re.DOTALL)
"""Pattern of the HotSpot code that a safepoint poll jumps to: mov (or lea) pc,%r10; mov %r10,n(%r15); jmp."""
_RESERVED = re.compile(rb"\x49\x3b(?:\xa7.{4}|\x67.)\x0f\x82(.{4})", re.DOTALL)
"""Pattern of HotSpot's check, after a frame was removed, that no reserved stack was used: cmp n(%r15),%rsp; jb."""
_COMPARED = re.compile(rb"\x2b\xca\x51\x0f\x4e\xd0\x85\xd2(?:\x74(.)|\x0f\x84(.{4}))", re.DOTALL)
"""Pattern of HotSpot's inlined String.compareTo: sub %edx,%ecx; push %rcx; cmovle %eax,%edx; test %edx,%edx; je."""
_COMPARED_EQUAL = re.compile(rb"\x58(?:\xd1\xf8)?\xeb([\x01-\x7f])")
"""Pattern of the code to which HotSpot's inlined String.compareTo (_COMPARED) jumps: pop %rax; [sar %eax;] jmp. Before
the target of this jump is pop %rcx.
"""
_COMPRESSED = re.compile(
    rb"\x52(?:\x8b\xc2\xb9\x00\xff\x00\xff|\xf7\xc2\xe0\xff\xff\xff).{1,2048}?(\x58\xeb\x06)\x33\xc0\x48\x83\xc4\x08",
    re.DOTALL,
)
"""Pattern of HotSpot's inlined StringUTF16.compress: push %rdx ... pop %rax; jmp; xor %eax,%eax; add $8,%rsp."""
_COPIED = re.compile(rb"\xff(?:\x74\x24.|\xb4\x24.{4})(\x8f(?:\x44\x24.|\x84\x24.{4}))", re.DOTALL)
"""Pattern of HotSpot's copy of a word on the stack: push n(%rsp); pop m(%rsp)."""
_LINKED = re.compile(rb"\x55\x48(?:\x8b\xec|\x89\xe5)")
"""Pattern of HotSpot code that links a frame: push %rbp; mov %rsp,%rbp."""
_UNLINKED = re.compile(rb"(?:\xc9|\x5d)(?=(?:\xc5\xf8\x77)?(?:\xc3|\xe9|\x41?\xff[\xe0-\xe7]))", re.DOTALL)
"""Pattern of HotSpot code that unlinks a frame: leave, or pop %rbp, before a return or a jump."""

_INTERPRETED = b"\x55\x48\x8b\xec\x41\x55"
"""Machine code that builds an interpreter frame of Java: push %rbp; mov %rsp,%rbp; push %r13."""
_POPPED = re.compile(rb"\x58(?=\x4c\x8d\x74\xcc\xf8)")
"""Pattern of the entry of a method in HotSpot's interpreter, which takes the return address from the stack: pop %rax
before lea -8(%rsp,%rcx,8),%r14.
"""
_RETURNS = re.compile(
    rb"(?:(\x41)?([\x58-\x5f]))?(?:(?:\x48\x8b(\xe3|\xe1)|\x49\x8b(\xe5)))?(\x41)?\xff([\xe0-\xe7])", re.DOTALL
)
"""Pattern of the return from HotSpot's interpreter: [pop %r]; [mov %rbx (%rcx, %r13),%rsp]; jmp *%r."""

_TO_HANDLER = re.compile(rb"\xc9\x59(\xff\xe1)")
"""Pattern of the code by which a HotSpot stub continues at an exception handler: leave; pop %rcx; jmp *%rcx."""

_I2C = re.compile(rb"\x48\x8b\x04\x24.{0,16}?\x50\x49\x8b\xc3", re.DOTALL)
"""Pattern of a HotSpot adapter from interpreted to compiled calls, which aligns the stack: mov (%rsp),%rax ... push
%rax; mov %r11,%rax.
"""
_C2I = re.compile(rb"\x58\x4c\x8b\xec(?:\x48\x83\xec.|\x48\x81\xec.{4})?\x48\x89\x04\x24", re.DOTALL)
"""Pattern of a HotSpot adapter from compiled to interpreted calls: pop %rax; mov %rsp,%r13; sub $n,%rsp; mov
%rax,(%rsp).
"""

_RESTORED = re.compile(
    rb"(?:\xe8.{4}|\xff[\xd0-\xd7])(?=(?:\xc5\xf8\x77)?\x48\x0f\xae\x0c\x24\x48\x81\xc4(.{4}))", re.DOTALL
)
"""Pattern of a HotSpot adapter that calls the virtual machine with all registers saved: call; [vzeroupper]; fxrstor64
(%rsp); add $n,%rsp.
"""
_R13_SAVED, _RBP_SAVED = 0x10, 0x50
"""Offsets of r13 and rbp above the vector registers that HotSpot saves (MacroAssembler::push_CPU_state)."""
_BARRIER = re.compile(
    rb"(?:\x6a\xff|\x68\xff{4})\x55\x48(?:\x8b\xec|\x89\xe5).{1,1024}?(\xc9)\x48\x83\xc4\x08\xc3", re.DOTALL
)
"""Pattern of the entry barrier of HotSpot's compiled methods: push $-1; push %rbp; mov %rsp,%rbp ... leave; add
$8,%rsp; ret.
"""
_RETURNED = re.compile(
    rb"\x49\x8b\xa7.{4}(\x50)(\x48\x83\xec\x10).{1,32}?(\x48\x83\xec\x08)\xe8.{4}(\x48\x83\xc4\x08)"
    rb".{1,32}?(\x48\x83\xc4\x10)(\x58).{1,16}?\x48\x2b\xe3",
    re.DOTALL,
)
"""Pattern of the code to which a thawed frame of a virtual thread returns while more frames are frozen: mov
n(%r15),%rsp; push %rax; sub $16,%rsp ... sub $8,%rsp; call; add $8,%rsp ... add $16,%rsp; pop %rax ... sub %rbx,%rsp.
"""
_THAWED = re.compile(rb"\x48\x8b\xe3\x48\x83\xec\x10(\x5d)\xc3", re.DOTALL)
"""Pattern of HotSpot code that continues in a thawed frame of a virtual thread: mov %rbx,%rsp; sub $16,%rsp; pop %rbp;
ret.
"""
_THAW = re.compile(rb"\x59\x49\x8b\xff(?=(?:\x48\xc7\xc6|\xbe)\x00{4})")
"""Pattern of the stub that thaws the first frames of a virtual thread: pop %rcx; mov %r15,%rdi; mov $0,%esi."""
_ROOM = re.compile(rb"\x48\x83\xec([\x00-\x7f])")
"""Pattern of the instruction that reserves stack in HotSpot's code: sub $n,%rsp."""
_PUSH_BYTE = 0x6A
_SAVING = re.compile(rb"[\x50-\x53\x56\x57]{2,8}")
"""Pattern of the pushes with which a HotSpot stub without a frame begins. The stub pops them in the reverse order
before it returns.
"""

MAX_ROWS = 1 << 14

_Part = tuple[int, int, Rule]
"""A part of some HotSpot code with its unwind rule: (start, end, rule)."""


@dataclass(frozen=True, slots=True)
class Codelet:
    """A part of HotSpot's interpreter, such as the code of one bytecode.

    Attributes:
        start: First address of the code.
        end: Address after the code.
        name: Purpose of the code.
    """

    start: int
    end: int
    name: str


class FrameRules:
    """A maker of unwind rules for HotSpot's generated code."""

    def __init__(self, arch: Arch) -> None:
        """Create a maker of unwind rules for HotSpot's code on an architecture, which must be x86-64."""
        self._arch = arch
        names = arch.registers
        self._columns = {name: names.index(name) for name in ("rax", "rcx", "rbx", "r13")}
        self._numbers = [names.index(name) for name in _MACHINE_ORDER]
        kept = {arch.sp, arch.fp, arch.pc}
        self._lost = tuple((column, UNDEFINED) for column in sorted(arch.callee_saved - kept))
        """Rules of the registers that a caller has lost: compiled Java code preserves only the frame pointer."""
        self.entered = self._by_sp(8, saved=False)
        self._pushed = self._by_sp(16, saved=True)
        at = RegKind.AT_CFA
        fp = (arch.fp, RegRule(at, -16))
        self.linked = Rule(arch.fp, 16, RegRule(at, -8), (*self._lost, fp))
        self.interpreted = Rule(arch.fp, 16, RegRule(at, -8), (*self._lost, fp, (arch.sp, RegRule(at, -24))))
        saved = zip(("rbx", "r12", "r13", "r14", "r15"), range(-72, -105, -8), strict=True)
        self.call_stub = Rule(
            arch.fp, 16, RegRule(at, -8), (fp, *((names.index(name), RegRule(at, offset)) for name, offset in saved))
        )
        """Unwind rule of the frame through which native code calls Java. That frame saves the callee-saved registers of
        the ABI.
        """

    def _by_sp(self, size: int, saved: bool) -> Rule:
        fp = ((self._arch.fp, RegRule(RegKind.AT_CFA, -16)),) if saved else ()
        return Rule(self._arch.sp, size, RegRule(RegKind.AT_CFA, -8), (*self._lost, *fp))

    def sized(self, size: int) -> Rule:
        """Return the unwind rule of a complete frame of `size` bytes in HotSpot's code."""
        return self._by_sp(size, saved=True)

    def _registers(self, ra: int | None, sp: int | None, popped: int = 8) -> Rule:
        """Return the unwind rule for HotSpot code in which a register holds the caller's pc or sp.

        Args:
            ra: Column of the register with the return address; None if sp points to it.
            sp: Column of the register with the caller's sp; None if the caller's sp is this frame's sp plus `popped`.
            popped: Number of bytes from sp to the caller's sp.
        """
        address = RegRule(RegKind.AT_CFA, -8) if ra is None else RegRule(RegKind.REG_PLUS, 0, ra)
        regs = () if sp is None else ((self._arch.sp, self._higher(sp)),)
        return Rule(self._arch.sp, popped, address, (*self._lost, *regs))

    def _higher(self, column: int) -> RegRule:
        """Return the unwind rule for sp: the value of a register with the caller's sp, or the CFA if that is higher.

        MethodHandle.linkToStatic and similar code removes an argument from the stack after the register was set.
        """
        number = self._numbers.index(column)
        dwarf = _DWARF_ORDER.index(_MACHINE_ORDER[number])
        return RegRule(RegKind.EXPR, expr=bytes((_BREG0 + dwarf, 0)) + _KEEP_HIGHER)

    def compiled(self, blob: Blob, code: bytes, osr_entry: int) -> FunctionRows | None:
        """Return the unwind rows of a method that HotSpot compiled.

        Args:
            blob: The method.
            code: Machine code of the method.
            osr_entry: Address of the entry for on-stack replacement, or 0.
        """
        if not blob.start < blob.end:
            return None
        size = blob.frame_size
        if size < 16:
            return FunctionRows(blob.start, blob.end, (blob.start,), (self.entered,))
        complete = max(0, min(blob.frame_complete, len(code)))
        parts: list[_Part] = []
        for found in _PUSHED.finditer(code):
            if _immediate(found) == size - 16:
                parts += [
                    (found.start() + 1, found.end(), self._pushed),
                    (found.start(), found.start() + 1, self.entered),
                ]
        for found in _STORED.finditer(code):
            if _immediate(found) == size - 8:
                stored = found.end(1)
                parts += [(stored, found.end(), self._by_sp(size, saved=False)), (found.start(), stored, self.entered)]
        if size == 16 and not parts:
            at = code.rfind(b"\x55", 0, complete)
            parts += [(at, at + 1, self.entered)] if at >= 0 else []
        begun = min((start for start, _, rule in parts if rule is self.entered), default=complete)
        parts.append((0, begun, self.entered))
        entry = osr_entry - blob.start
        if 0 < entry < len(code):
            after = [start for start, _, rule in parts if rule is self.entered and start >= entry]
            parts += [(entry, min(after), self.entered)] if after else []
        parts += self._saved_words(code, size)
        parts += self._ends(code, size)
        return _rows(blob.start, blob.end, self.sized(size), parts)

    def _saved_words(self, code: bytes, size: int) -> list[_Part]:
        """Return the parts of a HotSpot-compiled method in which a word is pushed: by the copy of a stack slot, and
        by inlined operations on strings.
        """
        parts: list[_Part] = []
        pushed, frame = self.sized(size + 8), self.sized(size)
        for found in _COMPARED.finditer(code):
            equal = found.end() + int.from_bytes(found[1] or found[2], "little", signed=True)
            leave = _COMPARED_EQUAL.match(code, equal) if equal > found.end() else None
            end = leave.end() + leave[1][0] if leave is not None else 0
            if leave is not None and code[end - 1 : end] == b"\x59":
                parts += [(found.start() + 3, end, pushed), (equal + 1, leave.end(), frame)]
        parts += [(*found.span(1), pushed) for found in _COPIED.finditer(code)]
        for found in _COMPRESSED.finditer(code):
            parts += [(found.start() + 1, found.end(), pushed), (found.start(1) + 1, found.end(1), frame)]
        return parts

    def _ends(self, code: bytes, size: int) -> list[_Part]:
        """Return the parts of a HotSpot-compiled method in which its frame has already been removed."""
        parts: list[_Part] = []
        removed = [
            (found.end() - 1, found.end()) for found in _REMOVED.finditer(code) if _immediate(found) == size - 16
        ]
        if size == 16:
            pops = (at.start() for at in re.finditer(rb"\x5d", code))
            removed += [(at, at + 1) for at in pops if _RETURN.match(code, at + 1) or _JUMP.match(code, at + 1)]
        for popped, end in removed:
            parts.append((popped, end, self._pushed))
            check = _RESERVED.match(code, end)
            if check is not None:
                parts.append((end, check.end(), self.entered))
                end = max(check.end() + int.from_bytes(check[1], "little", signed=True), 0)
            leave = _RETURN.match(code, end) or _JUMP.match(code, end)
            parts.append((end, leave.end() if leave else end + 1, self.entered))
            if leave is not None and leave.re is _RETURN and leave[1] is not None:
                stub = leave.end(1) + int.from_bytes(leave[1], "little", signed=True)
                out = _POLL_STUB.match(code, stub) if 0 <= stub < len(code) else None
                if out is not None:
                    parts.append((stub, out.end(), self.entered))
        parts += [(found.start() + 1, found.end(), self.entered) for found in _LEFT.finditer(code)]
        return parts

    def _all_saved(self, size: int) -> Rule:
        """Return the unwind rule of a HotSpot adapter that has saved all registers. The adapter has the sp of its entry
        in r13.

        Args:
            size: Size of the saved vector registers in bytes.
        """
        arch = self._arch
        fp = (arch.fp, RegRule(RegKind.AT_REG, size + _RBP_SAVED, arch.sp))
        caller_sp = (arch.sp, RegRule(RegKind.CFA_PLUS, 8))
        return Rule(
            arch.sp, size + _R13_SAVED, RegRule(RegKind.AT_CFA, 0), (*self._lost, fp, caller_sp), cfa_deref=True
        )

    def stub(self, blob: Blob, code: bytes) -> FunctionRows | None:
        """Return the unwind rows of a HotSpot stub for pcs that are not return addresses, or None if its code does not
        begin like a known kind of stub.
        """
        if _LINKED.match(code):
            parts = [(0, 1, self.entered), (1, 4, self._pushed)]
            for found in _UNLINKED.finditer(code):
                leave = _RETURN.match(code, found.end()) or _JUMP.match(code, found.end())
                parts.append((found.end(), leave.end() if leave else found.end() + 1, self.entered))
            for found in _TO_HANDLER.finditer(code):
                jump, popped = found.start(1), self._registers(self._columns["rcx"], None, 0)
                parts += [(jump - 1, jump, self.entered), (jump, found.end(), popped)]
            return _rows(blob.start, blob.end, self.linked, parts)
        saving = _SAVING.match(code)
        if saving is not None and not blob.frame_size:
            return self._pushing(blob, code, saving[0])
        begins = _PUSHED.match(code) or _STORED.match(code)
        return self.compiled(blob, code, 0) if begins and blob.frame_size >= 16 else None

    def _pushing(self, blob: Blob, code: bytes, pushes: bytes) -> FunctionRows | None:
        """Return the unwind rows of a HotSpot stub that begins by pushing registers, and pops them before it
        returns.
        """
        pops, count = bytes(byte + 8 for byte in reversed(pushes)), len(pushes)
        ends = [at for at in range(len(code)) if code.startswith(pops, at)]
        if not ends:
            return None
        sizes = [self._by_sp(8 + 8 * number, saved=False) for number in range(count + 1)]
        parts = [(at, at + 1, sizes[at]) for at in range(count)]
        room = _ROOM.search(code, count, ends[0])
        if room is not None:  # from here until sp is moved back
            back = code.find(b"\x48\x83\xc4" + room[1], room.end())
            if back < 0:
                return None
            parts.append((room.end(), back + 4, self._by_sp(8 + 8 * count + room[1][0], saved=False)))
        for start in ends:
            parts += [(start + at, start + at + 1, sizes[count - at]) for at in range(count)]
            parts.append((start + count, start + count + 3, self.entered))
        return _rows(blob.start, blob.end, sizes[count], parts)

    def entry_barrier(self, blob: Blob, code: bytes) -> FunctionRows | None:
        """Return the unwind rows of the entry barrier of HotSpot's compiled methods in a blob of stubs, or None.

        In the frame of this stub, a word lies between the frame record and the return address.
        """
        found = _BARRIER.search(code)
        if found is None:
            return None
        at, fp = RegKind.AT_CFA, self._arch.fp
        regs = (*self._lost, (fp, RegRule(at, -24)))
        inside, half = (Rule(column, 24, RegRule(at, -8), regs) for column in (fp, self._arch.sp))
        marked = self._by_sp(16, saved=False)
        start, push, left, size = found.start(), 2 if found[0][0] == _PUSH_BYTE else 5, found.end(1), len(found[0])
        parts = [
            (0, push, self.entered),
            (push, push + 1, marked),
            (push + 1, push + 4, half),
            (left - start, size - 1, marked),
            (size - 1, size, self.entered),
        ]
        return _rows(blob.start + start, blob.start + start + size, inside, parts)

    def thawed(self, entry_size: int, reserved: tuple[int, int]) -> Rule:
        """Return the unwind rule of the frame to which the last thawed frame of a virtual thread returns.

        That is the frame of Continuation.enterSpecial, which has a ContinuationEntry at its sp. Arguments of the thawed
        frame may lie between, so the entry is the first place that a return address into HotSpot's code follows.

        Args:
            entry_size: Size of a ContinuationEntry in bytes.
            reserved: Start and end of the memory that is reserved for HotSpot's code.
        """
        low, high = reserved
        fp = (self._arch.fp, RegRule(RegKind.AT_CFA, -16))
        expr = _find_entry(entry_size + 8, low, high - low)
        return Rule(-1, 0, RegRule(RegKind.AT_CFA, -8), (*self._lost, fp), cfa_expr=expr)

    def continuations(self, blob: Blob, code: bytes, entry_size: int) -> tuple[list[int], list[FunctionRows]]:
        """Return the addresses and unwind rows of the stubs that thaw frames of virtual threads. The caller of these
        stubs is Continuation.enterSpecial.

        Its frame holds a ContinuationEntry, the caller's rbp and a return address.

        Args:
            blob: A blob of stubs.
            code: Machine code of the blob.
            entry_size: Size of a ContinuationEntry in bytes.

        Returns:
            The addresses to which a thawed frame returns while more frames are frozen, and the unwind rows of the code
            there and of the first thaw. Both are empty if the stubs are elsewhere. The code that copies more frames has
            no rows, because its distance from the entry is not known.
        """
        returned = list(_RETURNED.finditer(code))
        if not returned:
            return [], []
        start, size = blob.start, entry_size + 16
        found: list[FunctionRows] = []
        for at in returned:
            parts = [
                (at.end(1), at.end(2), self.sized(size + 8)),
                (at.end(2), at.end(3), self.sized(size + 24)),
                (at.end(3), at.end(4), self.sized(size + 32)),
                (at.end(4), at.end(5), self.sized(size + 24)),
                (at.end(5), at.end(6), self.sized(size + 8)),
            ]
            parts = [(low - at.start(), high - at.start(), rule) for low, high, rule in parts]
            found.append(_rows(start + at.start(), start + at.end(), self.sized(size), parts))
        ends = list(_THAWED.finditer(code))
        thaw = _THAW.search(code, 0, returned[0].start())
        until = next((end.start() for end in ends if thaw is not None and end.start() > thaw.end()), 0)
        if thaw is not None and until:
            low, high = start + thaw.start(), start + until
            found.append(FunctionRows(low, high, (low, low + 1), (self.entered, self.linked)))
        for end in ends:
            low, pop, high = (start + offset for offset in (end.start(1), end.end(1), end.end()))
            found.append(FunctionRows(low, high, (low, pop), (self._pushed, self.entered)))
        return [start + at.start() for at in returned], found

    def codelet(self, codelet: Codelet, code: bytes) -> FunctionRows | None:
        """Return the unwind rows of a part of HotSpot's interpreter, for pcs that are not return addresses.

        Args:
            codelet: The part.
            code: Machine code of the part.
        """
        if not code:
            return None
        rax, r13 = self._columns["rax"], self._columns["r13"]
        parts: list[_Part] = []
        built = code.find(_INTERPRETED)
        if codelet.name.startswith("method entry"):
            popped = _POPPED.search(code, 0, built) if built >= 0 else None
            at_call = self._registers(None, r13)
            if popped is not None:
                fp = (self._arch.fp, RegRule(RegKind.AT_CFA, -16))
                sender = (self._arch.sp, self._higher(r13))
                half = Rule(self._arch.sp, 16, RegRule(RegKind.AT_CFA, -8), (*self._lost, fp, sender))
                parts = [
                    (0, popped.end(), at_call),
                    (popped.end(), built, self._registers(rax, r13, 0)),
                    (built, built + 1, at_call),
                    (built + 1, built + 6, half),
                ]
            else:
                parts = [(0, built if built >= 0 else len(code), at_call)]
        for found in _RETURNS.finditer(code):
            parts += self._return_parts(found)
        return _rows(codelet.start, codelet.end, self.interpreted, parts)

    def _return_parts(self, found: re.Match[bytes]) -> list[_Part]:
        """Return (start, end, unwind rule) of each piece of the code that leaves a HotSpot interpreter frame: pop, move
        of sp, jump.
        """
        pops, moves = found[2] is not None, found[3] or found[4]
        if not moves:
            return []
        target = self._numbers[(found[6][0] & 7) + (8 if found[5] else 0)]
        sender = self._columns["r13" if found[4] else "rbx" if found[3] == b"\xe3" else "rcx"]
        jump = found.start(5) if found[5] else found.start(6) - 1
        move = jump - 3
        parts = [
            (jump, found.end(), self._registers(target, None, 0)),
            (move, jump, self._registers(target, sender, 0)),
        ]
        if pops:
            parts.append((found.start(), move, self._registers(None, sender)))
        return parts

    def adapter(self, blob: Blob, code: bytes) -> FunctionRows | None:
        """Return the unwind rows of HotSpot's adapters between the calling conventions of the interpreter and compiled
        code.
        """
        rax, r13 = self._columns["rax"], self._columns["r13"]
        parts: list[_Part] = []
        first = _I2C.match(code)
        if first is not None:
            parts.append((4, first.end() - 3, self._registers(rax, None, 8)))
        for found in _C2I.finditer(code):
            parts += [
                (found.start() + 1, found.end(), self._registers(rax, r13, 0)),
                (found.start() + 1, found.start() + 4, self._registers(rax, None, 0)),
                (found.end(), len(code), self._registers(None, r13)),
            ]
        for found in _RESTORED.finditer(code):
            parts.append((found.end() - 1, found.end(), self._all_saved(int.from_bytes(found[1], "little"))))
        return _rows(blob.start, blob.end, self.entered, parts) if code else None


def _find_entry(offset: int, low: int, size: int) -> bytes:
    """Return a DWARF expression of the CFA of Continuation.enterSpecial, whose frame begins at sp or above.

    The expression tests the word at `offset` in each aligned place.

    Args:
        offset: Offset of the return address from the ContinuationEntry.
        low: Start of the memory that is reserved for HotSpot's code.
        size: Its size in bytes.
    """
    sp = bytes((_BREG0 + _DWARF_ORDER.index("rsp"), 0))
    dup, deref, minus, lit0, ge, swap, lt, both = (
        bytes((op,)) for op in (0x12, 0x06, 0x1C, 0x30, 0x2A, 0x16, 0x2D, 0x1A)
    )
    add, const, bra = b"\x23", b"\x0e", b"\x28"
    first = dup + add + bytes((offset,)) + deref + const + low.to_bytes(8, "little") + minus
    test = first + dup + lit0 + ge + swap + const + size.to_bytes(8, "little") + lt + both
    following = add + bytes((_FRAME_ALIGNMENT,)) + dup + sp + minus + const + _MAX_ARGUMENTS.to_bytes(8, "little") + lt
    again = bra + (-len(test) - 3 - len(following) - 3).to_bytes(2, "little", signed=True)
    missing = lit0 + deref
    leave = bra + len(following + again + missing).to_bytes(2, "little")
    return sp + test + leave + following + again + missing + add + bytes((offset + 8,))


_FRAME_ALIGNMENT = 16
"""Alignment in bytes of sp where HotSpot's compiled code calls."""
_MAX_ARGUMENTS = 512
"""Maximum size in bytes of the arguments between a thawed frame and the frame to which it returns. A Java method has at
most 255.
"""
_BREG0 = 0x70
_KEEP_HIGHER = bytes((0x14, 0x14, 0x2B, 0x28, 1, 0, 0x16, 0x13))
"""DWARF operations that leave the higher of two numbers: over, over, gt, bra +1, swap, drop."""
_DWARF_ORDER = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *(f"r{number}" for number in range(8, 16)))

_MACHINE_ORDER = (
    *("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi"),
    *(f"r{number}" for number in range(8, 16)),
)
"""The x86-64 general registers in the order of their numbers in instructions."""


def _immediate(found: re.Match[bytes]) -> int:
    """Return the immediate operand (bytes) of an x86-64 instruction that adds to sp or subtracts from it."""
    return int.from_bytes(found[1] or (found[2] if found.re.groups > 1 else b""), "little", signed=True)


def _rows(start: int, end: int, base: Rule, parts: Sequence[_Part]) -> FunctionRows:
    """Combine parts of a piece of HotSpot code, each with its rule, to unwind rows. A later part has precedence, and
    the rule `base` holds between parts.

    Args:
        start: First address of the code.
        end: Address after it.
        base: The rule outside the parts.
        parts: Parts relative to the code.
    """
    size = end - start
    starts, rules = [0], [base]

    def cut(at: int) -> int:
        place = bisect_left(starts, at)
        if place == len(starts) or starts[place] != at:
            starts.insert(place, at)
            rules.insert(place, rules[place - 1])
        return place

    for low, high, rule in parts:
        low, high = max(low, 0), min(high, size)
        if low >= high or len(starts) >= MAX_ROWS:
            continue
        last = cut(high) if high < size else len(starts)
        grown = len(starts)
        first = cut(low)
        last += len(starts) - grown
        starts[first:last], rules[first:last] = [low], [rule]
    return FunctionRows(start, end, tuple(start + at for at in starts), tuple(rules))
