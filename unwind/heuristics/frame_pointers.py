"""Callers by frame records, for frames that no table covers, with every check that the sample allows.

Generated code and hand-written assembly have no tables, but most of it links frame records. A record is used only if it
is aligned, above sp and in the copy. Its return address must be code after a call. The next record must lie above it,
or a table must cover the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.unwind_result import StackEnd, Trust, lookup_pc
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.unwind.heuristics.rules_and_checks_from_code import SpaceCode, Verdict
from pyprof.unwind.reference_unwinder import Caller, NoCaller, Outcome, Registers, Rules, find_interrupted
from pyprof.unwind.rules import RegKind, RegRule
from pyprof.unwind.sample_memory import LaneMemory

ENTRY_SIZE = 96
"""Number of bytes from an ELF entry point on that count as the entry function if its size is unknown."""

CALL_ALIGNMENT = 16
"""Alignment of sp in bytes before a call, as the ABIs require."""

MAX_ABOVE = 1024
"""Maximum number of stack words above the presumed first frame of a thread that are searched for return addresses."""

MAX_LINKS = 512
"""Maximum number of frame records that are followed through JIT code."""

LEAF_SIZE = 4096
"""Maximum distance in bytes from the target of a call up to a pc, for the target to count as the start of the function
at the pc.
"""

MAX_SIGNAL_FRAME = 32 << 10
"""Maximum size of a signal frame in bytes. Vector registers make it large."""


class Proof(IntEnum):
    """The evidence that a possible return address must have, in addition to a call before it."""

    NONE = 0  # the called function may have jumped on to the one at the pc
    NO_OTHER_TARGET = 1  # the call is indirect, or of a PLT entry
    TARGET = 2  # the call is of the function at the pc


def returns_to_trampoline(rules: Rules, return_address: int) -> bool:
    """Return True if a function with this return address handles a signal.

    No call precedes the kernel's signal trampoline.
    """
    known = rules(lookup_pc(return_address, False), False) if return_address else None
    return known is not None and known.rule.signal


class FramePointerFallback:
    """A finder of callers in one address space by frame records, for code without unwind tables.

    Attributes:
        enabled: If False, the fallback only recognizes the outermost frame. It then follows frame records only in
            modules whose unwind tables state that all code has them.
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
        """Return the caller of a frame without an unwind rule, or why there is none.

        The reason is ROOT in the program's entry function and in a new thread, NO_RULE if no record is trusted.
        """
        if (
            self._arch.signals.exception_return
            and (registers.values[self._arch.pc] or 0) >= self._arch.signals.exception_return
        ):
            return find_interrupted(registers, memory, self._arch)
        if not registers.exact and self._code.is_impossible(lookup_pc(registers.values[self._arch.pc] or 0, False)):
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
        """Find the caller by the frame record, according to the ABI's convention.

        At a pc that is not a return address, also try the case that the function has not yet built its frame record.
        """
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
        """Find the caller by the frame record that the base register points to (arch.chain)."""
        arch, chain = self._arch, self._arch.chain
        if chain is None:
            return NoCaller(StackEnd.NO_RULE)
        base, sp = registers.values[chain.base], registers.values[arch.sp]
        if base is None or sp is None:
            return NoCaller(StackEnd.NO_RULE, needs=chain.base if base is None else arch.sp)
        pc = registers.values[arch.pc] or 0
        if base == 0 and not registers.exact and self._may_keep_records(lookup_pc(pc, False)):
            # The ABIs mark the outermost frame by 0, but code may have used the register for something else.
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
            return NoCaller(StackEnd.NO_RULE if self._frames_above(at + arch.word, memory) else StackEnd.ROOT)
        known = self._code.classify_return_address(pc) is not Verdict.NO or returns_to_trampoline(self._rules, pc)
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
        """Return True if a chain of frame records leads from pc through only JIT code to a return address after a call.

        Interpreters push return addresses that do not follow a call (HotSpot pushes the place where its bytecode loop
        continues).
        """
        chain = self._arch.chain
        assert chain is not None
        for _ in range(MAX_LINKS):
            if (
                not self._code.is_executable(pc)
                or self._images.image(self._space, pc) is not None
                or base % self._arch.word
            ):
                return False
            following, ra = memory.word(base + chain.next_off), memory.word(base + chain.ra_off)
            if following is None or ra is None or chain.ra_in_next:
                return False
            pc = self._arch.code_address(ra, pac=True)
            if self._code.classify_return_address(pc) is Verdict.YES:
                return True
            if following <= base:
                return False
            base = following
        return False

    def _frames_above(self, sp: int, memory: LaneMemory) -> bool:
        """Return True if a word further up on the stack is a return address.

        Above a thread's first frame there are only arguments and thread data.
        """
        word = self._arch.word
        for avma in range(sp, sp + MAX_ABOVE * word, word):
            value = memory.word(avma)
            if value is None:
                return False
            if self._code.classify_return_address(self._arch.code_address(value, pac=True)) is Verdict.YES:
                return True
        return False

    def _may_keep_records(self, avma: int) -> bool:
        """Return True if the code at an address is known to have no unwind tables.

        The tables of a core file's modules may exist without being available on this machine.
        """
        image = self._images.image(self._space, avma)
        return self._code.is_readable(avma) and (image is None or not image.lacks_tables)

    def _sp_by_rule(self, pc: int, low: int, base: int, memory: LaneMemory) -> int:
        """Return the sp of a caller whose base register is known. The caller's unwind rule states the distance between
        both.

        Returns:
            The sp, or 0 if the rule does not give the distance.
        """
        arch = self._arch
        known = self._rules(lookup_pc(pc, False), False)
        if known is not None and known.rule.signal:
            return self._find_signal_frame(low, base, dict(known.rule.regs), memory)
        if known is None or known.rule.cfa_reg != arch.sp or known.rule.cfa_deref:
            return 0
        saved = dict(known.rule.regs).get(arch.fp)
        return base - saved.n - known.rule.cfa_off if saved is not None and saved.kind is RegKind.AT_CFA else 0

    def _find_signal_frame(self, low: int, record: int, saved: dict[int, RegRule], memory: LaneMemory) -> int:
        """Return the address of the signal frame that lies below the frame record which the kernel made for it, or 0.

        The record repeats two registers (fp and lr) that the signal frame holds.

        Args:
            low: Lowest possible address.
            record: Address of the frame record.
            saved: Rules of the registers in the signal frame.
            memory: Memory of the sample.
        """
        arch = self._arch
        fp, lr = memory.word(record), memory.word(record + arch.word)
        if fp is None or lr is None or arch.fp not in saved or arch.lr not in saved:
            return 0
        for sp in range(low & -16, min(record, low + MAX_SIGNAL_FRAME), 16):
            if memory.word(sp + saved[arch.fp].n) == fp and memory.word(sp + saved[arch.lr].n) == lr:
                return sp
        return 0

    def _before_frame(self, registers: Registers, memory: LaneMemory, proof: Proof) -> Caller | None:
        """Find the caller at a pc whose function has no frame record: it has not built one yet, never builds one, or
        has already removed it.

        The return address is where the call left it, or one word further up if the function has pushed the base
        register.
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
            if self._code.classify_return_address(ra) is Verdict.YES or returns_to_trampoline(self._rules, ra):
                return self._caller(registers, ra, sp + chain.cfa_off, base, Trust.FP)
        return None

    def _recorded(self, base: int | None, memory: LaneMemory) -> int:
        """Return the return address in the frame record to which the base register points, 0 if there is none."""
        chain = self._arch.chain
        if chain is None or not base:
            return 0
        at = (memory.word(base + chain.next_off) or 0) if chain.ra_in_next else base
        return self._arch.code_address(memory.word(at + chain.ra_off) or 0, pac=True) if at else 0

    def _is_nearer(self, recorded: int, other: int, pc: int) -> bool:
        """Return True if the call before the return address `recorded` has a nearer target below pc than the call
        before `other`.

        Both calls may have called the function at pc. A stale return address may belong to a call of a function that
        lies shortly before it.
        """
        if self._code.classify_return_address(recorded) is not Verdict.YES:
            return False
        target, others = self._code.call_target(recorded), self._code.call_target(other)
        return target is not None and others is not None and others < target <= pc

    def _frame_without_lr(self, pc: int, sp: int, base: int | None, memory: LaneMemory) -> tuple[int, int | None]:
        """Return the caller's sp and base register for a function whose return address is in the link register.

        The base register still has the caller's value, or it points to the place where the function has saved only that
        register.
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
        if self._code.classify_return_address(ra) is not Verdict.NO or returns_to_trampoline(self._rules, ra):
            return sp, base
        return base + chain.cfa_off, saved

    def _sp_of_leaf(self, sp: int, memory: LaneMemory) -> int:
        """Return the caller's sp for a function whose return address is in the link register.

        On architectures that link frames at sp, the function may have a frame although it has not saved the link
        register. Then the second frame of the chain holds the return address, not the first one.
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
        first, second = (self._code.classify_return_address(ra) is Verdict.YES for ra in saved)
        return links[1] if second and not first else sp

    def _called(self, ra: int, pc: int, proof: Proof) -> bool:
        """Return True if the call before the return address `ra` has called the function at pc, with the requested
        degree of proof.
        """
        if self._code.classify_return_address(ra) is not Verdict.YES:
            return returns_to_trampoline(self._rules, ra)
        target = self._code.call_target(ra)
        if target is None or self._code.is_jump(target):  # a PLT entry may lead to any function
            return proof is not Proof.TARGET
        if target == ra:  # call $+5 only reads the pc
            return False
        size = self._arch.calls.leaf_size(self._code.read(target, 16))
        return target <= pc < target + (size or LEAF_SIZE) or (proof is Proof.NONE and not size)

    def _at_call(self, registers: Registers) -> bool:
        """Return True if the registers show that the function at pc was just called and has executed no instruction
        yet.

        Compiled code aligns sp before each call, so the alignment of sp shows that. For JIT code, which need not align
        sp, the result is False. On architectures with a link register, the code at pc must be about to save that
        register.
        """
        sp, pc = registers.values[self._arch.sp] or 0, registers.values[self._arch.pc] or 0
        if self._arch.lr >= 0:
            return self._arch.calls.saves_lr(self._code.read(pc, 32))
        aligned = (sp + self._arch.word) % CALL_ALIGNMENT == 0
        return aligned and self._images.image(self._space, pc) is not None

    def _caller(self, registers: Registers, pc: int, sp: int, base: int | None, trust: Trust) -> Caller:
        """Return a caller of which only pc, sp and the base register are known."""
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
        """Return the reason why a frame record cannot be read: the stack copy is too short, or the address is not that
        of a record.
        """
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
        """Return True if the pc is just after a system call by which this thread may have been created, so that it is
        the thread's first code.
        """
        pc = registers.values[self._arch.pc] or 0
        return any(
            self._code.read(pc - len(before), len(before) + len(after)) == before + after
            for before, after in self._arch.calls.new_thread
        )
