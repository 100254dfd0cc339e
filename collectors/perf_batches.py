"""What a look into the rings found, as batches of samples: each in its address space, over the rings' own memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pyprof.collectors.perf_family import Family
from pyprof.collectors.perf_records import (
    LOST,
    LOST_SAMPLES,
    THROTTLE,
    Samples,
    Scan,
    parse_lost,
    read_samples,
)
from pyprof.collectors.perf_ring import Rings
from pyprof.diagnostics import Diagnostics
from pyprof.model.arch import I386, X86_64
from pyprof.model.modules import AddressSpace
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample import SampleBatch, SampleKind, StackSlab
from pyprof.options import CollectOptions

I386_IN_X86_64 = [0, 2, 1, 3, 7, 6, 4, 5, 16]
"""The columns of X86_64 that hold eax, ecx, edx, ebx, esp, ebp, esi, edi and eip of 32-bit code."""

Elsewhere = Callable[[npt.NDArray[np.int32], npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""(tid, time) of samples -> those of threads that another collector has taken over"""


class BatchMaker:
    """strangers: processes that are not looked at. sampled: tids. lost: records that found no room. elsewhere: samples
    to leave out.
    """

    def __init__(
        self,
        rings: Rings,
        chains: bool,
        family: Family,
        options: CollectOptions,
        diagnostics: Diagnostics,
        meets: bool,
    ) -> None:
        """chains: samples bring the kernel's frames. meets: processes are known as soon as they are sampled."""
        self.strangers: set[int] = {os.getpid()}
        self.sampled: set[int] = set()
        self.lost = 0
        self.elsewhere: Elsewhere | None = None
        self._rings = rings
        self._chains = chains
        self._family = family
        self._pattern = options.thread
        self._diagnostics = diagnostics
        self._meets = meets

    def batches(self, found: Scan) -> list[SampleBatch]:
        """One of 64-bit code, and one of 32-bit code if there is any."""
        lost = 0
        for record in found.others:
            if record.kind in (LOST, LOST_SAMPLES):
                lost += parse_lost(record.kind, record.body)
            elif record.kind == THROTTLE:
                self._diagnostics.count("kernel throttled the sampling (kernel.perf_event_max_sample_rate)")
        self._family.take(found.others)
        samples, left_out = read_samples(self._rings.words, found.samples, self._chains)
        if left_out:
            self._diagnostics.count("sample without registers (a thread that ends)", left_out)
        spaces, space, kept = self._place(samples)
        if lost:
            self.lost += lost
            self._diagnostics.count("sample lost: the ring was full", lost)
            for history in self._family.histories.values():
                if history.image.alive:
                    history.look()
        self.sampled.update(np.unique(samples.tid).tolist())
        n = len(samples)
        batch = SampleBatch(
            arch=X86_64,
            kind=np.full(n, SampleKind.STOPPED, np.uint8),
            time_ns=samples.time_ns,
            tid=samples.tid,
            pid=samples.pid,
            space=space,
            cpu=samples.cpu,
            weight=np.ones(n, np.int64),
            regs=samples.regs,
            stack=StackSlab(self._rings.words.view(np.uint8), samples.base, samples.offset, samples.size),
            spaces=spaces,
            tip=samples.tip,
            tips=samples.tips,
            followed=False,
        )
        if samples.narrow.any():
            narrow = batch.take(np.flatnonzero(kept & samples.narrow))
            regs = narrow.regs[:, I386_IN_X86_64] & np.uint64(I386.mask)
            return [batch.take(np.flatnonzero(kept & ~samples.narrow)), replace(narrow, arch=I386, regs=regs)]
        return [batch if kept.all() else batch.take(np.flatnonzero(kept))]

    def _place(self, samples: Samples) -> tuple[dict[int, AddressSpace], npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """(spaces, space of each sample, which samples are wanted)."""
        if self._meets:
            self._meet(set(samples.pid.tolist()))
        spaces: dict[int, AddressSpace] = {}
        space = np.zeros(len(samples), np.int32)
        for pid, history in list(self._family.histories.items()):
            lanes = np.flatnonzero(samples.pid == pid)
            space[lanes], used = history.settle(samples.time_ns[lanes], samples.regs[lanes, X86_64.pc])
            spaces.update(used)
        unknown = (space == 0) & (samples.pid != os.getpid())
        if unknown.any():
            self._diagnostics.count("sample of a process that is not known", int(np.count_nonzero(unknown)))
        kept = space > 0
        if self._pattern is not None:
            chosen = [info.tid for info in self._family.infos(set(samples.tid.tolist())) if self.wants(info)]
            kept &= np.isin(samples.tid, chosen)
        if self.elsewhere is not None:
            kept &= ~self.elsewhere(samples.tid, samples.time_ns)
        return spaces, space, kept

    def wants(self, info: ThreadInfo) -> bool:
        """Is it a thread that is asked for?"""
        return self._pattern is None or bool(self._pattern.search(info.name))

    def _meet(self, pids: set[int]) -> None:
        for pid in pids - self._family.histories.keys() - self.strangers:
            try:
                self._family.add(pid)
            except (ProcessLookupError, PermissionError):
                self.strangers.add(pid)
