"""How one thread gets its sample: not at all, from outside, or by a stop."""

from __future__ import annotations

import time

from pyprof.collectors import task_state
from pyprof.collectors.lanes import BatchBuilder
from pyprof.collectors.spaces import SpaceTracker, Witness
from pyprof.collectors.stop import Outcome, Stopper
from pyprof.collectors.syscalls import BlockedCall, parse_syscall, survives_stop
from pyprof.collectors.threads import Thread
from pyprof.diagnostics import Diagnostics
from pyprof.model.kernel import blocked_word
from pyprof.model.sample import SampleKind
from pyprof.options import CollectOptions

_TRIES = 3


class Sampler:
    """unchanged, blocked: samples taken without a stop."""

    def __init__(
        self, stopper: Stopper, builder: BatchBuilder, diagnostics: Diagnostics, options: CollectOptions
    ) -> None:
        self.unchanged = 0
        self.blocked = 0
        self._stopper = stopper
        self._builder = builder
        self._diagnostics = diagnostics
        self._options = options
        self._idle = options.idle

    def sample(self, thread: Thread, spaces: SpaceTracker, weight: int) -> bool:
        """Is there a lane of this thread now? Raises ProcessLookupError, PermissionError.

        schedstat is read on both sides of a look at a sleeping thread: equal means that it has not run in between
        (of a running thread that file alone proves nothing: it moves only at ticks and switches).
        """
        if thread.hollow:
            return False
        held = self._stopper.held.get(thread.tid)
        if held is not None:  # its sample, when it stops at last, stands for this one too
            held.weight += weight
            return False
        for _ in range(_TRIES):
            before = thread.schedstat()
            if before == thread.slept:
                return self._still_asleep(thread, spaces, weight)
            line = thread.syscall()
            if line.startswith(b"running"):
                thread.woke()
                return self._options.running and self._stop(thread, spaces, weight)
            call = parse_syscall(line)
            if call is None or call.sp == 0:
                thread.hollow = True
                return False
            if self._idle:
                self._stopper.copy_stack(thread, spaces, call.sp)
                witness = spaces.witness(call.pc)
                state = task_state.state(thread.tid) if self._options.waits else ""
            at_ns = time.monotonic_ns()
            if thread.schedstat() == before:
                if not self._idle:
                    thread.woke()
                    thread.slept = before
                    return False
                self._fell_asleep(thread, spaces, weight, call, before, at_ns, witness)
                self._say_wait(thread, state, call)
                return True
            if not self._idle:
                break
        else:
            self._diagnostics.count("thread ran while it was read from outside")
        thread.woke()
        return False

    def _fell_asleep(
        self,
        thread: Thread,
        spaces: SpaceTracker,
        weight: int,
        call: BlockedCall,
        slept: bytes,
        at_ns: int,
        witness: Witness,
    ) -> None:
        """The first sample of a sleep, just copied; or the first look after the stop that we made in it."""
        stopped = thread.stopped
        if stopped is not None and stopped[:2] == (call.sp, call.pc) and self._stopper.copied_equals(stopped[2]):
            thread.slept = slept
            thread.stop_wanted = False
            self._unchanged(thread, spaces, weight, at_ns)
            return
        thread.woke()
        thread.slept = slept
        thread.arch = spaces.image.arch
        lane = self._stopper.lane(SampleKind.BLOCKED, thread, spaces, weight, at_ns, witness)
        self._builder.set_sp_pc(lane, call.sp, call.pc)
        spaces.took(lane, call.pc, call.sp, witness)
        self.blocked += 1

    def _still_asleep(self, thread: Thread, spaces: SpaceTracker, weight: int) -> bool:
        if not self._idle:
            return False
        if thread.stop_wanted and thread.stopped is None and self._options.stop_sleepers:
            thread.stop_wanted = False
            call = parse_syscall(thread.syscall())
            if call is not None and survives_stop(call, thread.pid, spaces.image.arch):
                return self._stop_asleep(thread, spaces, weight, call)
            self._diagnostics.count("sleeping thread not stopped: its system call might fail")
        self._unchanged(thread, spaces, weight, time.monotonic_ns())
        return True

    def _stop_asleep(self, thread: Thread, spaces: SpaceTracker, weight: int, call: BlockedCall) -> bool:
        if not self._stop(thread, spaces, weight):
            thread.stopped = None
            return False
        thread.stopped = (call.sp, call.pc, self._stopper.copied())
        if self._options.waits:
            self._say_wait(thread, "S", call)
        return True

    def _say_wait(self, thread: Thread, state: str, call: BlockedCall) -> None:
        """Of the lane that was made last. state: "" where that is not wanted."""
        if state and len(self._builder):
            self._builder.set_tip(len(self._builder) - 1, (blocked_word(thread.arch, state, call.number),))

    def _unchanged(self, thread: Thread, spaces: SpaceTracker, weight: int, at_ns: int) -> None:
        self._stopper.empty_lane(thread, spaces, weight, at_ns)
        self.unchanged += 1

    def _stop(self, thread: Thread, spaces: SpaceTracker, weight: int) -> bool:
        outcome = self._stopper.stop(thread, spaces, weight)
        if outcome is Outcome.GONE:
            thread.ended = True
        return outcome is Outcome.TAKEN
