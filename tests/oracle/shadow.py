"""The shadow stack, maintained from calls and returns alone. The package's docstring defines it.

Stacks are interned: the same chain of callers is the same Entry, so that a state is recognized when it recurs.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.oracle.opcodes import CALL, JUMP, LONGEST, PLAIN, RET, SYSCALL, classify
from tests.oracle.tracer import ORIG_RAX, RAX, RIP, RSP, Tracee

NEVER = 1 << 64
"""Slot of an interrupted pc, which no stack pointer exceeds."""

MAPPING_CALLS = frozenset({9, 10, 11, 25, 59, 322})
"""Numbers of mmap, mprotect, munmap, mremap, execve and execveat, after which code may have changed."""

RT_SIGRETURN = 15
RED_ZONE = 128
# struct rt_sigframe at the handler's first instruction: restorer, then ucontext (arch/x86/include/asm/sigframe.h)
_UC_STACK_SP, _UC_STACK_SIZE, _UC_RSP, _UC_RIP = 8 + 16, 8 + 32, 8 + 160, 8 + 168


class Entry:
    """A return address or an interrupted pc, with everything outside of it.

    Attributes:
        pc: The address.
        slot: Its address on the stack, or NEVER for an interrupted pc.
        low: Start of the signal handler's stack.
        high: End of the signal handler's stack.
        interrupted_sp: Stack pointer of an interrupted pc.
    """

    __slots__ = (
        "children",
        "depth",
        "exact",
        "high",
        "interrupted_sp",
        "low",
        "number",
        "outer",
        "pc",
        "segment",
        "slot",
    )

    def __init__(self, number: int, outer: Entry | None, pc: int, slot: int) -> None:
        self.number = number
        self.outer = outer
        self.pc = pc
        self.slot = slot
        self.exact = False
        self.depth: int = outer.depth + 1 if outer else 0
        self.segment: Entry | None = outer.segment if outer else None
        self.low = self.high = self.interrupted_sp = 0
        self.children: dict[tuple[int, ...], Entry] = {}

    def chain(self) -> list[Entry]:
        """Return the entries from leaf to root, without the empty stack itself."""
        found = []
        entry = self
        while entry.outer is not None:
            found.append(entry)
            entry = entry.outer
        return found


class Shadow:
    """A shadow stack of a tracee, which begins at an instruction without callers.

    Attributes:
        pc: Current program counter.
        sp: Current stack pointer.
        top: Innermost entry.
        mapping_changes: Number of times that the code may have changed.
        before_mapping_change: Function that is called before such a change.
    """

    def __init__(self, tracee: Tracee) -> None:
        self.tracee = tracee
        self.entries = 1
        self.empty = self.top = Entry(0, None, 0, NEVER)
        self.mapping_changes = 0
        self.before_mapping_change: Callable[[], None] = lambda: None
        self.pc: int = tracee.regs[RIP]
        self.sp: int = tracee.regs[RSP]
        self._kinds: dict[int, int] = {}

    def step(self) -> bool:
        """Execute one instruction. Return False if a signal came first."""
        tracee = self.tracee
        regs = tracee.regs
        pc, sp = self.pc, self.sp
        kind = self._kinds.get(pc)
        if kind is None:
            kind = self._kinds[pc] = classify(tracee.read(pc, LONGEST))
        if kind == PLAIN and not tracee.pending:
            signalled = tracee.step()
            self.pc = regs[RIP]
            self.sp = regs[RSP]
            return not signalled
        return self._step_kind(kind, pc, sp)

    def _step_kind(self, kind: int, pc: int, sp: int) -> bool:
        tracee = self.tracee
        regs = tracee.regs
        delivered = tracee.pending
        call = regs[RAX]
        if kind == SYSCALL and call in MAPPING_CALLS:
            self.before_mapping_change()
        if kind == RET:
            self._heed_memory(sp)
        signalled = tracee.step()
        self.pc, self.sp = regs[RIP], regs[RSP]
        if signalled and self.pc == pc:
            return False
        if delivered and self._handler_entered(pc, sp):
            return True
        if kind == CALL:
            self._leave(self.sp + 8)
            self.top = self._push(tracee.word(self.sp), self.sp)
        elif kind in (RET, JUMP):
            self._leave(self.sp)
        elif kind == SYSCALL:
            self._after_syscall(call)
        return True

    def _leave(self, sp: int) -> None:
        """Drop the entries below sp after a jump or return."""
        top = self.top
        while True:
            while top.slot < sp:
                assert top.outer is not None
                top = top.outer
            handler = top.segment
            if handler is None or handler.low <= sp <= handler.high:
                break
            assert handler.outer is not None
            top = handler.outer
        self.top = top

    def _heed_memory(self, sp: int) -> None:
        """Replace the innermost return address at a return if its slot has another value by now."""
        top = self.top
        while top.slot < sp and top.outer is not None:
            top = top.outer
        if top.slot == sp and top.outer is not None:
            there = self.tracee.word(sp)
            if there != top.pc:
                self.top = self._push_on(top.outer, there, sp)

    def _handler_entered(self, pc: int, sp: int) -> bool:
        """Push the pc that a signal interrupted. Return False if the signal was ignored."""
        tracee, frame = self.tracee, self.sp
        interrupted = tracee.word(frame + _UC_RIP)
        interrupted_sp = tracee.word(frame + _UC_RSP)
        if interrupted_sp != sp or interrupted not in (pc, pc - 2):  # pc - 2 restarts a system call
            return False
        low, size = tracee.word(frame + _UC_STACK_SP), tracee.word(frame + _UC_STACK_SIZE)
        if not (low <= frame < low + size) or low <= interrupted_sp <= low + size:
            low, size = 0, interrupted_sp - RED_ZONE
        self.top = self._push_interrupted(interrupted, interrupted_sp, low, low + size)
        self.top = self._push(tracee.word(frame), frame)
        return True

    def _after_syscall(self, number: int) -> None:
        if number == RT_SIGRETURN:
            handler = self.top.segment
            if handler is not None:
                assert handler.outer is not None
                self.top = handler.outer
        elif number in MAPPING_CALLS:
            self.mapping_changes += 1
            self._kinds.clear()
            if number in (59, 322) and self.tracee.regs[ORIG_RAX] in (59, 322) and self.tracee.regs[RAX] == 0:
                self.top = self.empty

    def _push(self, pc: int, slot: int) -> Entry:
        return self._push_on(self.top, pc, slot)

    def _push_on(self, outer: Entry, pc: int, slot: int) -> Entry:
        entry = outer.children.get((pc, slot))
        if entry is None:
            entry = outer.children[pc, slot] = Entry(self.entries, outer, pc, slot)
            self.entries += 1
        return entry

    def _push_interrupted(self, pc: int, sp: int, low: int, high: int) -> Entry:
        key = (pc, sp, low, high)
        entry = self.top.children.get(key)
        if entry is None:
            entry = self.top.children[key] = Entry(self.entries, self.top, pc, NEVER)
            self.entries += 1
            entry.exact = True
            entry.low, entry.high, entry.interrupted_sp = low, high, sp
            entry.segment = entry
        return entry
