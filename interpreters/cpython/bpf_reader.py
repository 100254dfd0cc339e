"""One process's CPython whose frames are copied by the BPF program: the offsets it needs, and the meaning of its
rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.cpython.bpf_frame_rows import FrameRowReader, find_offsets
from pyprof.interpreters.cpython.frame_reader import LOST
from pyprof.model.interpreter_state import Chain, FrameOffsets, FrameRows, KernelReader, ThreadPlace
from pyprof.model.modules import AddressSpace

if TYPE_CHECKING:
    from pyprof.interpreters.cpython.process import PythonProcess
    from pyprof.interpreters.cpython.runtime_state import Runtime


class PythonInKernel:
    """A model.interpreter_state.KernelReader for CPython; the PythonProcess finds the runtime and lists its threads."""

    def __init__(self, process: PythonProcess, diagnostics: Diagnostics) -> None:
        self._process = process
        self._diagnostics = diagnostics
        self._runtime: Runtime | None = None
        self._rows: FrameRowReader | None = None
        self._tids: tuple[int, ...] = ()

    def inspect_process(
        self, space: AddressSpace, tids: Collection[int], parent: KernelReader | None = None
    ) -> str | None:
        process = self._process
        if self._runtime is not None and not space.modules:
            return ""  # the process has ended: what is known of it explains its last samples
        self._tids = tuple(tids)
        process.inspect_process(space, tids)
        self._take(process.expected, parent)
        if self._runtime is not None and self.offsets() is None:
            return f"the frames of CPython {self._runtime.layout.version} are not read in the kernel."
        return None if process.undecided else ""

    def _take(self, runtime: Runtime | None, parent: KernelReader | None) -> None:
        before, self._runtime = self._runtime, runtime
        if runtime is None:
            self._rows = None
        elif before is None or (before.address, before.layout) != (runtime.address, runtime.layout):
            inherited = parent._rows if isinstance(parent, PythonInKernel) and parent._runs(runtime) else None
            self._rows = self._process.row_reader(runtime, inherited)

    def _runs(self, runtime: Runtime) -> bool:
        """Return True if this process runs the same CPython runtime at the same address."""
        own = self._runtime
        return own is not None and (own.address, own.layout) == (runtime.address, runtime.layout)

    def goroutines(self) -> None:
        """Return None: Python has none."""

    def offsets(self) -> tuple[int, FrameOffsets] | None:
        if self._runtime is None:
            return None
        offsets = find_offsets(self._runtime.layout, self._process.greenlets, self._process.tasks)
        return None if offsets is None else (self._runtime.address, offsets)

    def places(self) -> list[ThreadPlace]:
        states = [(tid, self._process.thread_states(tid)) for tid in self._tids]
        return [ThreadPlace(tid, of[0].address, of[0].gil, of[0].collecting) for tid, of in states if of]

    def chains(self, rows: FrameRows) -> Sequence[Chain | None]:
        if self._rows is None:
            return [None] * (len(rows.start) - 1)
        lost = self._rows.lost
        found = self._rows.chains(rows, self._process.greenlets)
        if self._rows.lost > lost:
            self._diagnostics.count(LOST, self._rows.lost - lost)
        return found

    def finish_batch(self) -> None:
        if self._rows is not None:
            self._rows.finish_batch()
