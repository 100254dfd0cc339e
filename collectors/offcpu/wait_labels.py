"""The wait of a thread, from the sample that was taken when it left its processor.

The sample has user registers and kernel frames. On x86-64 the registers show that the thread is in a system call: the
`syscall` instruction leaves the return address in rcx, and rax is -ENOSYS until there is a result. The number of the
call is in the previous instruction (`mov $202,%eax; syscall`). If the code takes the number from a register, the call
is known only after a thread was seen in a wait with the same kernel frames; so is the thread's state. On AArch64 the
code shows the call, and x8 has its number.

Kernel functions that wait uninterruptibly, from /proc/kallsyms.

Such a wait is state D in /proc/PID/stat (TASK_UNINTERRUPTIBLE). The list is used until a thread was seen in the same
wait.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.sampled_arch import HERE, IN_REGISTER, WIDE
from pyprof.model.marker_frames import Blocked, KernelStack
from pyprof.model.modules import AddressSpace
from pyprof.model.sample_batch import SampleBatch
from pyprof.records import replace

_FUNCTIONS = (
    "io_schedule", "io_schedule_timeout", "bit_wait_io", "folio_wait_bit_common", "wait_for_completion",
    "wait_for_completion_timeout", "wait_for_completion_io", "wait_for_completion_io_timeout", "__mutex_lock.*",
    "rwsem_down_read_slowpath", "rwsem_down_write_slowpath", "schedule_timeout_uninterruptible",
    "schedule_timeout_killable", "msleep", "usleep_range_state", "__down", "blk_mq_get_tag", "jbd2_log_wait_commit",
)  # fmt: skip
_LINES = re.compile(
    rb"^([0-9a-f]+) [tT] (?:%b)(?:\.[\w.]+)?\n([0-9a-f]+) " % b"|".join(name.encode() for name in _FUNCTIONS),
    re.MULTILINE,
)
_MAX_KALLSYMS_BYTES = 1 << 28


def make_state_lookup(path: str = "/proc/kallsyms") -> Callable[[tuple[int, ...]], str]:
    """Return a function that maps the kernel frames of a sleeping thread, innermost first, to its state D or S. The
    state is B (blocked) if the kernel hides addresses.
    """
    spans: list[tuple[int, int]] | None = None

    def state(chain: tuple[int, ...]) -> str:
        nonlocal spans
        if spans is None:
            spans = _read(path)
        if not spans or not chain:
            return "B"
        starts = [start for start, _ in spans]
        for pc in chain:
            at = bisect_right(starts, pc) - 1
            if at >= 0 and pc < spans[at][1]:
                return "D"
        return "S"

    return state


def _read(path: str) -> list[tuple[int, int]]:
    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_KALLSYMS_BYTES)
    except OSError:
        return []
    spans = [(int(start, 16), int(end, 16)) for start, end in _LINES.findall(text)]
    return sorted((start, end) for start, end in spans if start < end)


WAITS_FOR_PROCESSOR = "P"
UNKNOWN = "B"
_WAITS = "SDTtI"

_ENOSYS = np.uint64(2**64 - 38)
_MAX_LABELS = 1 << 16


class WaitLabels:
    """Labels that say what threads wait for; `kernel` is True if the kernel's frames are shown too."""

    def __init__(self, kernel: bool) -> None:
        self._kernel = kernel
        self._by_chain: dict[KernelStack, Blocked] = {}
        self._by_pc: dict[tuple[int, int], Blocked] = {}
        self._by_code: dict[tuple[int, int], int] = {}
        self._guess = make_state_lookup()

    def learn(self, samples: SampleBatch, out_of_band: list[tuple[int, Blocked]]) -> None:
        """Learn the states of waits from out-of-band samples: (sample, the state and system call that /proc reported in
        the same wait).
        """
        if len(self._by_chain) > _MAX_LABELS:
            self._by_chain.clear()
        for lane, seen in out_of_band:
            if seen.state in _WAITS:  # otherwise it was about to run
                self._by_chain[_chain(samples, lane)] = seen

    def relabel_samples(self, out_of_band: SampleBatch) -> SampleBatch:
        """Return out-of-band samples in which threads that were woken meanwhile have the state of their sleep."""
        if out_of_band.kernel_stack is None:
            return out_of_band
        if len(self._by_pc) > _MAX_LABELS:
            self._by_pc.clear()
        kernel_stacks = {frames: place for place, frames in enumerate(out_of_band.kernel_stacks)}
        kernel_stack = out_of_band.kernel_stack.copy()
        for lane in np.flatnonzero(out_of_band.kernel_stack).tolist():
            seen, *rest = out_of_band.kernel_stacks[int(kernel_stack[lane])]
            assert isinstance(seen, Blocked)
            at = int(out_of_band.pid[lane]), int(out_of_band.regs[lane, out_of_band.arch.pc])
            if seen.state in _WAITS:
                self._by_pc[at] = seen
            elif seen.state == "R":
                before = self._by_pc.get(at)
                state = before.state if before is not None and before.call == seen.call else UNKNOWN
                kernel_stack[lane] = kernel_stacks.setdefault((seen._replace(state=state), *rest), len(kernel_stacks))
        return replace(out_of_band, kernel_stack=kernel_stack, kernel_stacks=tuple(kernel_stacks))

    def label_samples(self, samples: SampleBatch, blocked: npt.NDArray[np.bool_]) -> SampleBatch:
        """Return the samples with the wait of each as its innermost frame. Threads that are not blocked wait for a
        processor.
        """
        kernel_stacks: dict[KernelStack, int] = {(): 0}
        pc = samples.regs[:, WIDE.pc]
        in_call, number = blocked, np.zeros(len(samples), np.uint64)
        if HERE.result >= 0:
            in_call = (samples.regs[:, HERE.call_pc] == pc) & (samples.regs[:, HERE.result] == _ENOSYS)
        if HERE.call_column >= 0:
            number = samples.regs[:, HERE.call_column]
        kernel_stack = np.zeros(len(samples), np.int32) if samples.kernel_stack is None else samples.kernel_stack
        columns = (kernel_stack, blocked, in_call, samples.space, samples.pid, pc.view(np.int64), number.view(np.int64))
        kinds = np.stack([column.astype(np.int64) for column in columns], axis=1)
        _, first, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        found = np.zeros(len(first), np.int32)
        for place, lane in enumerate(first.tolist()):
            chain = _chain(samples, lane)
            wait = Blocked(WIDE.name, WAITS_FOR_PROCESSOR)
            if blocked[lane]:
                wait = self._wait(samples, lane, chain, bool(in_call[lane]))
            found[place] = kernel_stacks.setdefault((wait, *(chain if self._kernel else ())), len(kernel_stacks))
        return replace(samples, kernel_stack=found[which.ravel()], kernel_stacks=tuple(kernel_stacks))

    def _wait(self, samples: SampleBatch, lane: int, chain: KernelStack, in_call: bool) -> Blocked:
        known = self._by_chain.get(chain)
        state = known.state if known else self._guess(tuple(frame for frame in chain if not isinstance(frame, Blocked)))
        if in_call:
            pc, space = int(samples.regs[lane, WIDE.pc]), samples.spaces.get(int(samples.space[lane]))
            call = self._coded(space, pc) if space is not None else -1
            if call == IN_REGISTER:
                call = int(samples.regs[lane, HERE.call_column].astype(np.int32))
            if call < 0 and (seen := self._by_pc.get((int(samples.pid[lane]), pc))):
                call = seen.call
            if call >= 0:
                return Blocked(WIDE.name, state, call)
        return known._replace(state=state) if known else Blocked(WIDE.name, state)

    def _coded(self, space: AddressSpace, pc: int) -> int:
        """Return the number of the system call that returns to pc, from the code before pc: see PerfArch.coded_call."""
        key = (space.id, pc)
        if key not in self._by_code:
            if len(self._by_code) > _MAX_LABELS:
                self._by_code.clear()
            self._by_code[key] = HERE.coded_call(space.read(pc - 8, 8))
        return self._by_code[key]


def find_wakeups_before(out_of_band: SampleBatch) -> list[int]:
    """Return the indices of out-of-band samples whose threads had already been woken."""
    if out_of_band.kernel_stack is None:
        return []
    late = [place for place, frames in enumerate(out_of_band.kernel_stacks) if frames and _state(frames) == "R"]
    found: list[int] = np.flatnonzero(np.isin(out_of_band.kernel_stack, late)).tolist()
    return found


def _chain(samples: SampleBatch, lane: int) -> KernelStack:
    return samples.kernel_stacks[int(samples.kernel_stack[lane])] if samples.kernel_stack is not None else ()


def _state(frames: KernelStack) -> str:
    return frames[0].state if isinstance(frames[0], Blocked) else ""
