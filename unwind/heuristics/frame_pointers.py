"""Callers by frame records, for frames that no table covers, with every check that the sample allows.

Generated code and hand-written assembly have no tables, but most of it links frame records. A record is used only if
it is aligned, above sp and in the copy, if its return address is code after a call, and if the next record lies above
it or a table covers the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from pyprof.model.arch import Arch
from pyprof.model.modules import AddressSpace
from pyprof.model.walk import StackEnd, Trust, lookup_pc
from pyprof.objfile.images import ImageStore
from pyprof.unwind.code import SpaceCode, Verdict
from pyprof.unwind.exception_return import interrupted
from pyprof.unwind.memory import LaneMemory
from pyprof.unwind.rules import RegKind, RegRule
from pyprof.unwind.scalar import Caller, NoCaller, Outcome, Registers, Rules

ENTRY_SIZE = 96
"""Bytes from an ELF entry point on that count as the entry function if its size is not known."""

CALL_ALIGNMENT = 16
"""To a multiple of so many bytes the ABIs align sp before a call."""

MOST_ABOVE = 1024
"""Words looked at above what would be a thread's first frame."""

MOST_LINKS = 512
"""Frame records that are followed through generated code to see where they lead."""

LEAF_SIZE = 4096
"""A call to at most this many bytes before the pc counts as a call of the function at the pc."""

MOST_SIGNAL_FRAME = 32 << 10
"""Bytes of a signal frame; vector registers make it long."""


class Proof(IntEnum):
    """What is asked of a word where the return address should be, besides that it follows a call."""

    NONE = 0  # the called function may have jumped on to the one at the pc
    NO_OTHER_TARGET = 1  # the call is indirect, or of a PLT entry
    TARGET = 2  # the call is of the function at the pc


def returns_to_trampoline(rules: Rules, return_address: int) -> bool:
    """Does a function that returns there handle a signal? No call stands before the kernel's trampoline."""
    known = rules(lookup_pc(return_address, False), False) if return_address else None
    return known is not None and known.rule.signal


class FramePointerFallback:
    """The fallback of one address space. enabled: False refuses all but to see the root, and to follow the records that
    promised (of a lookup pc) says are kept there. covered: is a lookup pc covered by records that are no rules?
    """

    needs_all = False

    def __init__(
        self,
        arch: Arch,
        space: AddressSpace,
        images: ImageStore,
        code: SpaceCode,
        rules: Rules,
        enabled: bool,
        promised: Callable[[int], bool] = lambda pc: False,
        covered: Callable[[int], bool] = lambda pc: False,
    ) -> None:
        self._arch = arch
        self._space = space
        self._images = images
        self._code = code
        self._rules = rules
        self.enabled = enabled
        self._promised = promised
        self._covered = covered

    def caller(self, registers: Registers, memory: LaneMemory) -> Outcome:
        """The caller of a frame without a rule. A refusal is ROOT in the program's entry function, else NO_RULE."""
        if (
            self._arch.signals.exception_return
            and (registers.values[self._arch.pc] or 0) >= self._arch.signals.exception_return
        ):
            return interrupted(registers, memory, self._arch)
        if not registers.exact and self._code.impossible(lookup_pc(registers.values[self._arch.pc] or 0, False)):
            return NoCaller(StackEnd.NO_RULE, no_frame=True)
        if registers.exact:
            result = self._arch.kernel.prstatus.index(self._arch.kernel.syscall_return)
            value = registers.values[result]
            unknown = value is None and result not in registers.withheld
            if (unknown or value == 0) and self._behind_clone(registers):
                return NoCaller(StackEnd.NO_RULE, needs=result) if unknown else NoCaller(StackEnd.ROOT)
        found: Outcome = NoCaller(StackEnd.NO_RULE)
        if self.enabled or self._promised(lookup_pc(registers.values[self._arch.pc] or 0, registers.exact)):
            found = self._by_convention(registers, memory)
        if isinstance(found, NoCaller) and found.end is StackEnd.NO_RULE:
            if self._in_entry(registers):
                return NoCaller(StackEnd.ROOT)
            if registers.exact and self._arch.lr >= 0 and registers.values[self._arch.lr] is None:
                return NoCaller(StackEnd.NO_RULE, needs=self._arch.lr)
        return found

    def _by_convention(self, registers: Registers, memory: LaneMemory) -> Outcome:
        """By the frame record, or at an exact pc by what stands there before there is one."""
        if not registers.exact:
            return self._by_record(registers, memory)
        early = self._before_frame(registers, memory, Proof.NONE if self._at_call(registers) else Proof.TARGET)
        if early is not None:
            return early
        found = self._by_record(registers, memory)
        if not isinstance(found, NoCaller):
            return found
        early = self._before_frame(registers, memory, Proof.NO_OTHER_TARGET)
        return found if early is None else early

    def _by_record(self, registers: Registers, memory: LaneMemory) -> Outcome:
        """ra and the caller's base from the record that the base register points to (arch.chain)."""
        arch, chain = self._arch, self._arch.chain
        if chain is None:
            return NoCaller(StackEnd.NO_RULE)
        base, sp = registers.values[chain.base], registers.values[arch.sp]
        if base is None or sp is None:
            return NoCaller(StackEnd.NO_RULE, needs=chain.base if base is None else arch.sp)
        pc = registers.values[arch.pc] or 0
        if base == 0 and not registers.exact and self._may_keep_records(lookup_pc(pc, False)):
            # the ABIs' mark of the deepest frame, if nothing else used the register since
            return NoCaller(StackEnd.NO_RULE if self._frames_above(sp, memory) else StackEnd.ROOT)
        if base % arch.word or base < sp:
            return NoCaller(StackEnd.NO_RULE)
        following = memory.word(base + chain.next_off)
        if following is None:
            return self._unreadable(base + chain.next_off, sp)
        if chain.zero_is_root and following == 0 and not registers.exact:
            return NoCaller(StackEnd.ROOT)
        at = (following if chain.ra_in_next else base) + chain.ra_off
        ra = memory.word(at)
        if ra is None:
            return self._unreadable(at, sp)
        pc = arch.code_address(ra, pac=True)
        if pc == 0:
            return NoCaller(StackEnd.ROOT)
        known = self._code.return_address(pc) is not Verdict.NO or returns_to_trampoline(self._rules, pc)
        if not known and not self._leads_to_call(pc, following, memory):
            return NoCaller(StackEnd.NO_RULE)
        ascends = following > base or following == 0
        caller = lookup_pc(pc, False)
        if not ascends and (chain.cfa_off is None or not (self._rules(caller, False) or self._covered(caller))):
            return NoCaller(StackEnd.NO_RULE)
        caller_sp = following if chain.cfa_off is None else base + chain.cfa_off
        if not chain.sp_known:
            caller_sp = max(caller_sp, self._sp_by_rule(pc, base, following, memory))
        return self._caller(registers, pc, caller_sp, following, Trust.FP)

    def _leads_to_call(self, pc: int, base: int, memory: LaneMemory) -> bool:
        """Does a chain of records lead from pc through nothing but generated code to a return address behind a call?

        Interpreters push return addresses that no call has left (HotSpot's: where its bytecode goes on).
        """
        chain = self._arch.chain
        assert chain is not None
        for _ in range(MOST_LINKS):
            if (
                not self._code.executable(pc)
                or self._images.image(self._space, pc) is not None
                or base % self._arch.word
            ):
                return False
            following, ra = memory.word(base + chain.next_off), memory.word(base + chain.ra_off)
            if following is None or ra is None or chain.ra_in_next:
                return False
            pc = self._arch.code_address(ra, pac=True)
            if self._code.return_address(pc) is Verdict.YES:
                return True
            if following <= base:
                return False
            base = following
        return False

    def _frames_above(self, sp: int, memory: LaneMemory) -> bool:
        """Is there a return address further up? Above a thread's first frame lie arguments and thread data, no code."""
        word = self._arch.word
        for avma in range(sp, sp + MOST_ABOVE * word, word):
            value = memory.word(avma)
            if value is None:
                return False
            if self._code.return_address(self._arch.code_address(value, pac=True)) is Verdict.YES:
                return True
        return False

    def _may_keep_records(self, avma: int) -> bool:
        """Is it code of which we know that it has no tables? Those of a core file's modules may just not be here."""
        image = self._images.image(self._space, avma)
        return self._code.is_readable(avma) and (image is None or not image.lacks_tables)

    def _sp_by_rule(self, pc: int, low: int, base: int, memory: LaneMemory) -> int:
        """The sp of a caller whose base register is known: its own rule says how far its record lies from sp; 0 if it
        does not, and needs no sp. low: sp is not below.
        """
        arch = self._arch
        known = self._rules(lookup_pc(pc, False), False)
        if known is not None and known.rule.signal:
            return self._signal_frame(low, base, dict(known.rule.regs), memory)
        if known is None or known.rule.cfa_reg != arch.sp or known.rule.cfa_deref:
            return 0
        saved = dict(known.rule.regs).get(arch.fp)
        return base - saved.n - known.rule.cfa_off if saved is not None and saved.kind is RegKind.AT_CFA else 0

    def _signal_frame(self, low: int, record: int, saved: dict[int, RegRule], memory: LaneMemory) -> int:
        """Where a signal frame begins, above which the kernel made a frame record: it repeats two of the registers that
        are saved below. 0 if it is not found.
        """
        arch = self._arch
        fp, lr = memory.word(record), memory.word(record + arch.word)
        if fp is None or lr is None or arch.fp not in saved or arch.lr not in saved:
            return 0
        for sp in range(low & -16, min(record, low + MOST_SIGNAL_FRAME), 16):
            if memory.word(sp + saved[arch.fp].n) == fp and memory.word(sp + saved[arch.lr].n) == lr:
                return sp
        return 0

    def _before_frame(self, registers: Registers, memory: LaneMemory, proof: Proof) -> Caller | None:
        """An exact pc whose function has not linked its record yet, never does, or has undone it.

        The return address is where the call left it, or below a base register that has been pushed but not set.
        """
        arch, chain = self._arch, self._arch.chain
        sp, pc = registers.values[arch.sp], registers.values[arch.pc]
        if sp is None or pc is None:
            return None
        base = registers.values[chain.base] if chain is not None else None
        if arch.lr >= 0:
            ra = arch.code_address(registers.values[arch.lr] or 0, pac=True)
            recorded = self._recorded(base, memory)
            if self._called(ra, pc, proof) and (
                proof is Proof.NONE or not (ra == recorded or self._is_nearer(recorded, ra, pc))
            ):
                return self._caller(registers, ra, *self._frame_without_lr(pc, sp, base, memory), Trust.LR)
            return None
        ra = memory.word(sp) or 0
        recorded = self._recorded(base, memory)
        if self._called(ra, pc, proof) and (proof is Proof.NONE or not self._is_nearer(recorded, ra, pc)):
            return self._caller(registers, ra, sp + arch.word, base, Trust.FP)
        if chain is not None and base and memory.word(sp) == base and chain.cfa_off is not None:
            ra = memory.word(sp + chain.ra_off) or 0
            if self._code.return_address(ra) is Verdict.YES or returns_to_trampoline(self._rules, ra):
                return self._caller(registers, ra, sp + chain.cfa_off, base, Trust.FP)
        return None

    def _recorded(self, base: int | None, memory: LaneMemory) -> int:
        """The return address in the frame record that base points to; 0 if there is none."""
        chain = self._arch.chain
        if chain is None or not base:
            return 0
        at = (memory.word(base + chain.next_off) or 0) if chain.ra_in_next else base
        return self._arch.code_address(memory.word(at + chain.ra_off) or 0, pac=True) if at else 0

    def _is_nearer(self, recorded: int, other: int, pc: int) -> bool:
        """Of two calls that may have been of the function at pc: is the recorded one's target the nearer start?

        What an earlier call left behind may be of a function that happens to stand a little below this one.
        """
        if self._code.return_address(recorded) is not Verdict.YES:
            return False
        target, others = self._code.call_target(recorded), self._code.call_target(other)
        return target is not None and others is not None and others < target <= pc

    def _frame_without_lr(self, pc: int, sp: int, base: int | None, memory: LaneMemory) -> tuple[int, int | None]:
        """The caller's sp and base of a function whose return address is in the link register.

        Its base register is its caller's, or points to where it saved that one alone.
        """
        chain, calls = self._arch.chain, self._arch.calls
        if chain is None or chain.leaf_off is None or chain.cfa_off is None or base is None or base < sp:
            return self._sp_of_leaf(sp, memory), base
        if calls.sets_base(self._code.read(pc - 32, 32)) and calls.saves_lr(self._code.read(pc, 32)):
            return base + chain.cfa_off, memory.word(base + chain.next_off)
        saved = memory.word(base + chain.leaf_off)
        if saved is None or saved % self._arch.word or 0 < saved <= base:
            return sp, base
        ra = self._arch.code_address(saved)
        if self._code.return_address(ra) is not Verdict.NO or returns_to_trampoline(self._rules, ra):
            return sp, base
        return base + chain.cfa_off, saved

    def _sp_of_leaf(self, sp: int, memory: LaneMemory) -> int:
        """The caller's sp of a function whose return address is in the link register.

        Where frames are linked at sp, it may have made a frame all the same: then what its frame links to has no return
        address of its own beside it, and what that links to has.
        """
        chain = self._arch.chain
        if chain is None or chain.base != self._arch.sp or not chain.ra_in_next:
            return sp
        links = [sp]
        while len(links) < 3:
            links.append(memory.word(links[-1] + chain.next_off) or 0)
            if links[-1] <= links[-2]:
                return sp
        saved = [self._arch.code_address(memory.word(link + chain.ra_off) or 0) for link in links[1:]]
        first, second = (self._code.return_address(ra) is Verdict.YES for ra in saved)
        return links[1] if second and not first else sp

    def _called(self, ra: int, pc: int, proof: Proof) -> bool:
        """Does ra follow the call of the function at pc?"""
        if self._code.return_address(ra) is not Verdict.YES:
            return returns_to_trampoline(self._rules, ra)
        target = self._code.call_target(ra)
        if target is None or self._code.is_jump(target):  # a PLT entry may lead to any function
            return proof is not Proof.TARGET
        if target == ra:  # call $+5 asks for pc
            return False
        size = self._arch.calls.leaf_size(self._code.read(target, 16))
        return target <= pc < target + (size or LEAF_SIZE) or (proof is Proof.NONE and not size)

    def _at_call(self, registers: Registers) -> bool:
        """Has the function just been called? Is sp where a call leaves it, in code of a file (such code aligns the
        stack before it calls, generated code need not), or is the link register about to be saved?
        """
        sp, pc = registers.values[self._arch.sp] or 0, registers.values[self._arch.pc] or 0
        if self._arch.lr >= 0:
            return self._arch.calls.saves_lr(self._code.read(pc, 32))
        aligned = (sp + self._arch.word) % CALL_ALIGNMENT == 0
        return aligned and self._images.image(self._space, pc) is not None

    def _caller(self, registers: Registers, pc: int, sp: int, base: int | None, trust: Trust) -> Caller:
        """Nothing but pc, sp and the base register is known of the caller."""
        arch = self._arch
        values: list[int | None] = [None] * len(arch.registers)
        chain = arch.chain
        if chain is not None and chain.base != arch.sp:
            values[chain.base] = base
        values[arch.sp] = sp & arch.mask
        values[arch.pc] = pc
        withheld = registers.withheld & {arch.fp} if base is None else frozenset[int]()
        return Caller(Registers(values, False, withheld), sp & arch.mask, trust)

    def _unreadable(self, avma: int, sp: int) -> NoCaller:
        """The record is missing: because the copy is short, or because it was none."""
        if not 0 <= avma <= self._arch.mask:
            return NoCaller(StackEnd.NO_RULE)
        mapping = self._space.mapping_at(avma)
        if mapping is self._space.mapping_at(sp) and (mapping is not None or not self._space.complete):
            return NoCaller(StackEnd.UNREADABLE, missing=avma)
        return NoCaller(StackEnd.NO_RULE)

    def _in_entry(self, registers: Registers) -> bool:
        pc = registers.values[self._arch.pc] or 0
        image = self._images.image(self._space, lookup_pc(pc, registers.exact))
        return image is not None and bool(image.file.entry) and 0 <= image.svma(pc) - image.file.entry <= ENTRY_SIZE

    def _behind_clone(self, registers: Registers) -> bool:
        """Does the pc stand behind a system call that may have made this thread?"""
        pc = registers.values[self._arch.pc] or 0
        return any(
            self._code.read(pc - len(before), len(before) + len(after)) == before + after
            for before, after in self._arch.calls.new_thread
        )
