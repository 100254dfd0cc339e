"""What a thread waits in, by the sample that was taken when it left its processor.

The sample has user registers and kernel frames. The registers show that the thread is in a system call: the `syscall`
instruction leaves the return address in rcx, and rax is -ENOSYS until there is a result. The number of the call is in
the instruction before it (`mov $202,%eax; syscall`). Where the code takes the number from a register, the call, like
the thread's state, is known after a thread was seen in a wait with the same kernel frames.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from pyprof.collectors.linux.kernel_waits import uninterruptible
from pyprof.collectors.linux.perf_arch import CALL_PC, RESULT, WIDE
from pyprof.model.kernel import Blocked, blocked_word, parse_blocked
from pyprof.model.modules import AddressSpace
from pyprof.model.sample import SampleBatch
from pyprof.records import replace

WAITS_FOR_PROCESSOR = "P"
UNKNOWN = "B"
_WAITS = "SDTtI"

_ENOSYS = np.uint64(2**64 - 38)
_MOST = 1 << 16

Chain = tuple[int, ...]


class WaitLabels:
    """kernel: the kernel's frames are shown, too."""

    def __init__(self, kernel: bool) -> None:
        self._kernel = kernel
        self._by_chain: dict[Chain, Blocked] = {}
        self._by_pc: dict[tuple[int, int], Blocked] = {}
        self._by_code: dict[tuple[int, int], int] = {}
        self._guess = uninterruptible()

    def learn(self, samples: SampleBatch, looks: list[tuple[int, int]]) -> None:
        """looks: (sample, word of the look from outside into the same wait)."""
        if len(self._by_chain) > _MOST:
            self._by_chain.clear()
        for lane, word in looks:
            seen = parse_blocked(word)
            if seen.state in _WAITS:  # else it was about to run
                self._by_chain[_chain(samples, lane)] = seen

    def relabelled(self, looks: SampleBatch) -> SampleBatch:
        """Looks at threads that were woken meanwhile say how these had slept."""
        if looks.tip is None:
            return looks
        if len(self._by_pc) > _MOST:
            self._by_pc.clear()
        tips = {words: place for place, words in enumerate(looks.tips)}
        tip = looks.tip.copy()
        for lane in np.flatnonzero(looks.tip).tolist():
            words = looks.tips[int(tip[lane])]
            seen, at = parse_blocked(words[0]), (int(looks.pid[lane]), int(looks.regs[lane, looks.arch.pc]))
            if seen.state in _WAITS:
                self._by_pc[at] = seen
            elif seen.state == "R":
                before = self._by_pc.get(at)
                state = before.state if before is not None and before.call == seen.call else UNKNOWN
                tip[lane] = tips.setdefault((blocked_word(seen.arch, state, seen.call), *words[1:]), len(tips))
        return replace(looks, tip=tip, tips=tuple(tips))

    def labelled(self, samples: SampleBatch, blocked: npt.NDArray[np.bool_]) -> SampleBatch:
        """The samples with what each waits for inside its innermost frame. blocked: others wait for a processor."""
        tips: dict[tuple[int, ...], int] = {(): 0}
        pc = samples.regs[:, WIDE.pc]
        in_call = (samples.regs[:, CALL_PC] == pc) & (samples.regs[:, RESULT] == _ENOSYS)
        tip = np.zeros(len(samples), np.int32) if samples.tip is None else samples.tip
        columns = (tip, blocked, in_call, samples.space, samples.pid, pc.view(np.int64))
        kinds = np.stack([column.astype(np.int64) for column in columns], axis=1)
        _, first, which = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        found = np.zeros(len(first), np.int32)
        for place, lane in enumerate(first.tolist()):
            chain = _chain(samples, lane)
            word = blocked_word(WIDE, WAITS_FOR_PROCESSOR, -1)
            if blocked[lane]:
                word = self._wait(samples, lane, chain, bool(in_call[lane]))
            found[place] = tips.setdefault((word, *(chain if self._kernel else ())), len(tips))
        return replace(samples, tip=found[which.ravel()], tips=tuple(tips))

    def _wait(self, samples: SampleBatch, lane: int, chain: Chain, in_call: bool) -> int:
        known = self._by_chain.get(chain)
        state = known.state if known else self._guess(chain)
        if in_call:
            pc, space = int(samples.regs[lane, WIDE.pc]), samples.spaces.get(int(samples.space[lane]))
            call = self._coded(space, pc) if space is not None else -1
            if call < 0 and (seen := self._by_pc.get((int(samples.pid[lane]), pc))):
                call = seen.call
            if call >= 0:
                return blocked_word(WIDE, state, call)
        return blocked_word(known.arch, state, known.call) if known else blocked_word(WIDE, state, -1)

    def _coded(self, space: AddressSpace, pc: int) -> int:
        """The number in the instruction before the system call that returns to pc, -1 if it is not there."""
        key = (space.id, pc)
        if key not in self._by_code:
            if len(self._by_code) > _MOST:
                self._by_code.clear()
            self._by_code[key] = call_number(space.read(pc - 8, 8))
        return self._by_code[key]


def late_looks(looks: SampleBatch) -> list[int]:
    """The lanes of looks at threads that had been woken by then."""
    if looks.tip is None:
        return []
    late = [place for place, words in enumerate(looks.tips) if words and parse_blocked(words[0]).state == "R"]
    found: list[int] = np.flatnonzero(np.isin(looks.tip, late)).tolist()
    return found


def _chain(samples: SampleBatch, lane: int) -> Chain:
    return samples.tips[int(samples.tip[lane])] if samples.tip is not None else ()


def call_number(code: bytes) -> int:
    """Of 8 bytes of code that end with a `syscall`: the number that is put into eax right before it, -1 if none."""
    if len(code) != 8 or code[6:] != b"\x0f\x05":
        return -1
    if code[1] == 0xB8 and code[0] & 0xF0 != 0x40:  # mov $number,%eax; with 0x41 before it another register
        return int(struct.unpack_from("<i", code, 2)[0])
    if code[4:6] in (b"\x31\xc0", b"\x33\xc0"):  # xor %eax,%eax
        return 0
    return -1
