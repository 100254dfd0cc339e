"""Entry point of unwinding: sample batches in, walks out."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from functools import partial

import numpy as np
import numpy.typing as npt

from pyprof.model.address_space import AddressSpace
from pyprof.model.arch import Arch
from pyprof.model.integer_array_operations import distinct
from pyprof.model.loss_reason_texts import problem
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.unwind_result import Walk, lookup_pc
from pyprof.objfile.base import ObjectFile
from pyprof.objfile.mapped_object_files import Image, ImageStore
from pyprof.options import FALLBACK, SCAN, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.batch_unwinding import BatchWalk, WalkedSpace, read_first_registers
from pyprof.unwind.dwarf_expressions import Budget
from pyprof.unwind.formats.breakpad_stack_win import STACK_WIN_ARCH, StackWinFallback, StackWinRecords
from pyprof.unwind.heuristics.call_target_checks import CallSites
from pyprof.unwind.heuristics.deep_stacks import DeepStacks
from pyprof.unwind.heuristics.frame_pointer_recovery import FramePointerRecovery
from pyprof.unwind.heuristics.frame_pointers import FramePointerFallback
from pyprof.unwind.heuristics.stack_scan import ScanFallback
from pyprof.unwind.module_unwind_sources import READERS, NoRuntimeRules, Reader, RuntimeRules
from pyprof.unwind.native_unwinder import NativeWalker, find_library
from pyprof.unwind.reference_unwinder import Fallback, ReferenceUnwinder
from pyprof.unwind.rule_lookup import RuleIndex, SpaceIndex
from pyprof.unwind.sample_memory import LaneMemory

I64 = npt.NDArray[np.int64]


class Unwinder:
    """The unwinder of sample batches, with caches of rules by file and by address space. No content of a target makes
    it raise an exception.
    """

    def __init__(
        self,
        images: ImageStore,
        options: UnwindOptions,
        diagnostics: Diagnostics,
        readers: Mapping[str, Reader] = READERS,
        runtime: RuntimeRules | None = None,
    ) -> None:
        """Create an unwinder without cached rules.

        Args:
            images: The object files of all processes.
            options: Sources of rules and limits.
            diagnostics: Counters of the recording.
            readers: Readers of the unwind tables that options.sources may name.
            runtime: Unwind rules of JIT code.
        """
        self._images = images
        self._options = options
        self._diagnostics = diagnostics
        self._readers = readers
        self._runtime = runtime or NoRuntimeRules()
        self._indexes: dict[tuple[str, int], RuleIndex] = {}
        self._native: dict[tuple[str, int], NativeWalker] = {}
        self._spaces: dict[tuple[str, int, int], tuple[WalkedSpace, DeepStacks]] = {}
        self._budget = Budget()
        self._until_ns = 0

    def walk(self, batch: SampleBatch) -> Walk:
        """Unwind a batch: return the frames of all samples. An UNCHANGED sample gets no frames and StackEnd.RUNNING."""
        found = self._walk(batch, by_steps=True)
        for index in self._indexes.values():
            index.drop_idle_code(time.monotonic())
        return found

    def walk_scalar(self, batch: SampleBatch) -> Walk:
        """Return the frames of all samples by the reference unwinder, one sample at a time."""
        return self._walk(batch, by_steps=False)

    def registers(self, batch: SampleBatch) -> list[list[list[int | None]]]:
        """Return the registers of every frame that the unwinder finds.

        Returns:
            For each sample, for each frame: the register values by column, None where unknown.
        """
        found = []
        for lane, space_id in enumerate(batch.space.tolist()):
            space, _ = self._space(batch.arch, batch.spaces[space_id])
            walk = space.walker.walk(read_first_registers(batch, lane), LaneMemory(batch, lane), keep_registers=True)
            found.append([registers.values for registers in walk.registers or ()])
        return found

    def function_range(self, arch: Arch, space: AddressSpace, pc: int, exact: bool) -> tuple[int, int] | None:
        """Return (start, end) in the process of the function at a frame's pc, or None if no unwind table covers it."""
        return self._space(arch, space)[0].index.function_range(lookup_pc(pc, exact), exact)

    def known_start(self, image: Image, svma: int, names: Collection[str]) -> int | None:
        """Return the start of the function that covers a file address if a walk has already found its rows, else None.

        Args:
            image: The module.
            svma: Address in the file.
            names: Names of the tables that may have its rows. The analysis of its code may also have found them.
        """
        found = (index.known_start(image, svma, names) for index in self._indexes.values())
        return next((start for start in found if start is not None), None)

    def forget(self, space_id: int) -> None:
        """Drop the unwind caches of an address space from which no more samples come. The rules of its files are
        kept.
        """
        for key in [key for key in self._spaces if key[2] == space_id]:
            del self._spaces[key]
        for index in self._indexes.values():
            index.forget(space_id)

    def retire(self, files: Set[ObjectFile]) -> None:
        """Drop the unwind rules of files that no process maps any more."""
        for index in self._indexes.values():
            index.retire(files)

    def _walk(self, batch: SampleBatch, by_steps: bool) -> Walk:
        self._pass_time(batch)
        walk = BatchWalk(batch, self._open_native(batch.arch) if by_steps else None)
        fresh = batch.kind != SampleKind.UNCHANGED
        deferred = []
        for space_id in distinct(batch.space[fresh]).tolist():
            space, deep = self._space(batch.arch, batch.spaces[space_id])
            for lanes in self._by_time(batch, np.flatnonzero(fresh & (batch.space == space_id)), space.index):
                if by_steps and not space.walker.fallback.needs_all:
                    deep.renew(self._rules_at(int(batch.time_ns[lanes].max()), space.index.space))
                    settled = not self._runtime.changes(space.index.space)
                    walk.walk_space(walk.walk_beyond_copy(lanes, space.walker, deep), space, settled)
                else:
                    walk.walk_scalar(lanes, space.walker)
            self._name_dear_rules([space.index.space])
            deferred.append(space.index.space)
        walk.walk_deferred()
        self._name_dear_rules(deferred)
        return walk.collect_walk()

    def _name_dear_rules(self, spaces: Iterable[AddressSpace]) -> None:
        """Report the module whose DWARF expressions have exceeded the budget of operations, if any have. The module is
        searched for in the given address spaces.
        """
        budget = self._budget
        if budget.refused:
            self._diagnostics.count("unwind_rules_too_costly", budget.refused)
            module = next(filter(None, (space.module_at(budget.at) for space in spaces)), None)
            if module is not None:
                self._diagnostics.problem(module.path, problem("rules_compute_too_much"))
            budget.refused = budget.at = 0

    def _pass_time(self, batch: SampleBatch) -> None:
        """Increase the number of operations that DWARF expressions may execute, in proportion to the time since the
        last batch.
        """
        if len(batch):
            now_ns = int(batch.time_ns.max())
            self._budget.pass_time(now_ns - self._until_ns if self._until_ns else 0)
            self._until_ns = max(self._until_ns, now_ns)

    def _rules_at(self, time_ns: int, space: AddressSpace) -> tuple[int, int]:
        """Return a number that is equal for two times at which the same unwind rules of JIT code apply in an address
        space.
        """
        return self._runtime.version(space), bisect_right(self._runtime.changes(space), time_ns)

    def _by_time(self, batch: SampleBatch, lanes: I64, index: SpaceIndex) -> Iterator[I64]:
        """Divide the samples of one address space into groups between the times at which unwind rules of JIT code
        changed, and yield the indices of each group.
        """
        self._runtime.refresh(index.space)
        changes = self._runtime.changes(index.space)
        times = batch.time_ns[lanes]
        first, last = (int(times.min()), int(times.max())) if len(lanes) else (0, 0)
        cuts = changes[bisect_right(changes, first) : bisect_right(changes, last)]
        if not cuts:
            index.set_time(last)
            yield lanes
            return
        part = np.searchsorted(np.array(cuts, np.int64), times, side="right")
        for which in distinct(part).tolist():
            index.set_time(int(times[part == which].max()))
            yield lanes[part == which]

    def _index(self, arch: Arch) -> RuleIndex:
        """Return the unwind rules (RuleIndex) of an architecture and address size.

        The address size determines where pointer signatures begin.
        """
        key = arch.name, arch.pac_mask
        if key not in self._indexes:
            self._indexes[key] = RuleIndex(
                arch, self._images, self._options, self._diagnostics, self._readers, self._runtime
            )
        return self._indexes[key]

    def _open_native(self, arch: Arch) -> NativeWalker | None:
        """Return the native walker of an architecture, or None if there is none on this machine."""
        key = arch.name, arch.pac_mask
        library = find_library()
        if key not in self._native and library is not None:
            self._native[key] = NativeWalker(library, arch, self._index(arch).rules, self._options.max_depth)
        return self._native.get(key)

    def _space(self, arch: Arch, space: AddressSpace) -> tuple[WalkedSpace, DeepStacks]:
        key = arch.name, arch.pac_mask, space.id
        if key not in self._spaces:
            rules = self._index(arch)
            index = rules.open_space(space)
            recovery = FramePointerRecovery(arch, space, index.code, index)
            fallback = self._fallback(arch, space, index, recovery)
            native = self._open_native(arch)
            tables, follow_rules = None, None
            if native is not None:
                tables = native.open_space(fallback.enabled)
                follow_rules = partial(native.follow_rules, index, tables)
            walked = WalkedSpace(index, self._walker(arch, index, fallback, recovery), tables)
            self._spaces[key] = walked, DeepStacks(arch, follow_rules, rules.rules)
        return self._spaces[key]

    def _walker(
        self, arch: Arch, index: SpaceIndex, fallback: Fallback, recovery: FramePointerRecovery
    ) -> ReferenceUnwinder:
        calls = CallSites(arch, index.space, index.code, index)
        depth = self._options.max_depth
        return ReferenceUnwinder(
            arch,
            index.find_rule,
            index.find_load_bias,
            fallback,
            recovery.recover_callers,
            depth,
            self._budget,
            calls.proves_call,
            calls.allows_call,
        )

    def _fallback(self, arch: Arch, space: AddressSpace, index: SpaceIndex, recovery: FramePointerRecovery) -> Fallback:
        options = self._options
        windows = None
        if arch.name == STACK_WIN_ARCH and "breakpad" in options.sources and options.symbols:
            windows = StackWinRecords(space, self._images)
        found: Fallback = FramePointerFallback(
            arch,
            space,
            self._images,
            index.code,
            index.find_rule,
            FALLBACK in options.sources,
            index.has_frame_pointers,
            windows.has_record if windows else lambda pc: False,
        )
        if SCAN in options.sources:
            trial = self._walker(arch, index, found, recovery)
            found = ScanFallback(arch, space, self._images, index.code, found, trial)
        return StackWinFallback(arch, space, windows, found) if windows else found
