"""The oracle's loop: step, update the shadow stack, sample each new state, and judge the states in batches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyprof.model.address_space import AddressSpace
from pyprof.options import DEFAULT_SOURCES, UnwindOptions
from tests.oracle.judge import Judge, Mismatch
from tests.oracle.shadow import Entry, Shadow
from tests.oracle.states import Key, Spaces, State, capture
from tests.oracle.tracer import AT_ENTRY, Ended, Tracee

BATCH = 1000
MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Plan:
    """Options of a run.

    Attributes:
        start: "entry", "start" or a symbol of the program.
        limit: Maximum number of instructions, or 0 for none.
        every: Compare one of this many new states.
        sources: Unwind sources as for --unwind.
        seconds: Maximum duration in seconds, or 0 for none.
        only: Compare only states whose innermost frame is in a module with this in its path.
    """

    start: str = "start"
    limit: int = 0
    every: int = 1
    sources: tuple[str, ...] = DEFAULT_SOURCES
    seconds: float = 0.0
    only: str = ""


@dataclass
class Result:
    """The result of a run.

    Attributes:
        visits: How often the program was in each compared state.
    """

    command: tuple[str, ...]
    stepped: int
    seconds: float
    ended: bool
    deepest: int
    visits: dict[Key, int]
    judge: Judge

    @property
    def compared(self) -> int:
        """Number of instructions whose state was compared."""
        return sum(self.visits.values())

    @property
    def exact(self) -> int:
        return self.compared - sum(self.visits[key] for key in self.judge.wrong_keys)

    @property
    def mismatches(self) -> list[Mismatch]:
        """Return the mismatches, those with the most states first."""
        return sorted(self.judge.wrong.values(), key=lambda m: (-len(m.keys), m.place, m.what))

    def by_module(self) -> dict[str, tuple[int, int]]:
        """Return (compared instructions, correct instructions) by path of the innermost frame's module."""
        compared: Counter[str] = Counter()
        exact: Counter[str] = Counter()
        for key, visits in self.visits.items():
            path = self.judge.modules[key]
            compared[path] += visits
            exact[path] += visits if key not in self.judge.wrong_keys else 0
        return {path: (count, exact[path]) for path, count in compared.most_common()}


class Oracle:
    def __init__(self, command: Sequence[str], plan: Plan, env: dict[str, str] | None = None) -> None:
        self.command = tuple(command)
        self.plan = plan
        self.judge = Judge(UnwindOptions(sources=plan.sources))
        self._env = env
        self._states: list[State] = []
        self._bytes = 0
        self._spaces: dict[int, AddressSpace] = {}
        self._visits: dict[Key, int] = {}
        self._left_out: set[Key] = set()

    def run(self) -> Result:
        plan = self.plan
        began = time.monotonic()
        stepped = deepest = 0
        ended = False
        tracee = Tracee(self.command, self._env)
        try:
            begin_at = 0
            if plan.start != "entry":
                tracee.run_to(tracee.auxv()[AT_ENTRY])
                if plan.start != "start":
                    begin_at = tracee.symbol(plan.start)
            shadow = Shadow(tracee)
            spaces = Spaces(tracee)
            shadow.before_mapping_change = lambda: self._flush(tracee.pid)
            self._look(tracee, shadow.top, self._space(spaces), shadow.pc, shadow.sp, spaces.stack_end)
            changes = 0
            deadline = began + plan.seconds if plan.seconds else float("inf")
            space_id = max(self._spaces)
            visits, left_out = self._visits, self._left_out
            while not plan.limit or stepped < plan.limit:
                try:
                    if not shadow.step():
                        continue
                except Ended:
                    ended = True
                    break
                stepped += 1
                if begin_at:
                    if shadow.pc != begin_at:
                        continue
                    begin_at = 0
                if shadow.mapping_changes != changes:
                    changes = shadow.mapping_changes
                    space_id = self._space(spaces)
                if stepped & 1023 == 0 and time.monotonic() > deadline:
                    break
                key = (space_id, shadow.pc, shadow.sp, shadow.top.number)
                if key in visits:
                    visits[key] += 1
                elif key not in left_out:
                    deepest = max(deepest, shadow.top.depth)
                    self._look(tracee, shadow.top, space_id, shadow.pc, shadow.sp, spaces.stack_end)
            self._flush(tracee.pid)
        finally:
            tracee.close()
        return Result(self.command, stepped, time.monotonic() - began, ended, deepest, self._visits, self.judge)

    def _space(self, spaces: Spaces) -> int:
        space = spaces.refresh()
        self._spaces[space.id] = space
        return space.id

    def _look(self, tracee: Tracee, entry: Entry, space_id: int, pc: int, sp: int, stack_end: int) -> None:
        """Capture a new state."""
        key = (space_id, pc, sp, entry.number)
        seen = len(self._visits) + len(self._left_out)
        if (self.plan.every > 1 and seen % self.plan.every) or not self._wanted(space_id, pc):
            self._left_out.add(key)
            return
        self._visits[key] = 1
        state = capture(tracee, key, entry, stack_end)
        self._states.append(state)
        self._bytes += len(state.stack)
        if len(self._states) >= BATCH or self._bytes >= MAX_BYTES:
            self._flush(tracee.pid)

    def _wanted(self, space_id: int, pc: int) -> bool:
        if not self.plan.only:
            return True
        module = self._spaces[space_id].module_at(pc)
        return module is not None and self.plan.only in module.path

    def _flush(self, pid: int) -> None:
        states, self._states, self._bytes = self._states, [], 0
        self.judge.judge(states, pid, self._spaces)
