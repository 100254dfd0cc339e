"""Numbers and descriptions of the JIT code in the frames of a recording.

The description of a frame is chosen when its sample is unwound, because the address may later belong to other code.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pyprof.lazy_dataclasses import dataclass, field
from pyprof.model.address_space import AddressSpace, Module
from pyprof.model.integer_array_operations import distinct
from pyprof.model.jit_code_map import CodeName, Span
from pyprof.model.sample_batch import SampleBatch
from pyprof.model.stacks import FrameKey
from pyprof.model.unwind_result import Walk, lookup_pc, lookup_pcs
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.runtime_code.base import ManagedRuntime, Ranges, module_path
from pyprof.runtime_code.process_code import ProcessCode, Spans
from pyprof.runtime_code.runtime_processes import RuntimeProcesses
from pyprof.symbolize.symbolizer import Described
from pyprof.unwind.rule_cache import MetPcs

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

KERNELS = frozenset({"[vdso]", "[vsyscall]"})
NAME_ORDER = ("gdb", "hotspot", "v8", "jitdump", "libunwind", "perf map")
"""Labels of the sources of JIT code descriptions, in the order in which names are taken from them: first sources with
lines, then sources with exact times.
"""
_FRAMES = 64
"""Number of frames of JIT code that are described before RuntimeProcesses.between_lookups runs, in which other work is
done.
"""


@dataclass(frozen=True, slots=True)
class _Code:
    """A description of JIT code that has a number, because frames of stacks refer to it."""

    process: ProcessCode
    spans: Spans
    space: AddressSpace
    pc: int


@dataclass(slots=True)
class _BoundFrames:
    """A cache of the numbers of JIT code in one address space, valid while no description changes.

    Attributes:
        mark: State of the descriptions (see ProcessCode.mark).
        by_pc: Number of each lookup pc, 0 if no code is described there.
        by_span: Number of each description of a frame by a managed runtime.
    """

    mark: tuple[int, int, int]
    by_pc: MetPcs = field(default_factory=MetPcs)
    by_span: dict[Span[Any], int] = field(default_factory=dict)


class RuntimeCode:
    """The JIT code of a recording: a number for each function that a frame runs, and the description with that number.

    Implements pipeline.batch_to_stacks.CodeBinder and symbolize.symbolizer.DescribedCode.
    """

    def __init__(self, images: ImageStore, options: UnwindOptions, diagnostics: Diagnostics) -> None:
        self.processes = RuntimeProcesses(images, options, diagnostics)
        self._images = images
        self._candidates: dict[int, tuple[Ranges, U64, U64]] = {}
        self._codes: dict[int, _Code] = {}
        self._next = 1
        self._numbers: dict[tuple[Spans, int], int] = {}
        self._bound: dict[int, _BoundFrames] = {}
        self._described: dict[int, Described] = {}
        self._late: set[object] = set()
        self._new_functions = 0

    def forget(self, space: AddressSpace) -> None:
        """Drop the descriptions of JIT code in an address space from which no more samples come."""
        self._candidates.pop(space.id, None)
        self._bound.pop(space.id, None)
        self.processes.forget(space)

    def drop_unused(self, numbers: Set[int], since_ns: int) -> None:
        """Drop descriptions of JIT code and processes that are no longer needed.

        Args:
            numbers: Numbers of the descriptions to which stacks refer.
            since_ns: CLOCK_MONOTONIC time. All samples before that time are already unwound, so descriptions and
                processes that ended before it are dropped.
        """
        self._codes = {number: code for number, code in self._codes.items() if number in numbers}
        self._described = {number: known for number, known in self._described.items() if number in numbers}
        self._numbers = {key: number for key, number in self._numbers.items() if number in numbers}
        self._bound.clear()
        self.processes.drop_unused(since_ns)

    # The methods that the recorder calls.

    def bind_frames(self, batch: SampleBatch, walk: Walk) -> I32 | None:
        """Return for each unwound frame the number of its JIT code description (FrameKey.code), 0 if it has none."""
        code: I32 | None = None
        lane: I64 | None = None
        for space_id in distinct(batch.space).tolist():
            space = batch.spaces[space_id]
            if self.processes.known(space) is None and self.processes.may_run(space):
                self.processes.process(space)
            starts, ends = self._candidate_ranges(space)
            if not len(starts):
                continue
            if lane is None:
                lane = np.repeat(np.arange(len(walk)), np.diff(walk.start))
            lookup = lookup_pcs(walk.pc, walk.exact)
            at = np.searchsorted(starts, lookup, side="right") - 1
            inside = np.flatnonzero((at >= 0) & (lookup < ends[at]) & (batch.space[lane] == space_id))
            process = self.processes.process(space) if len(inside) else None
            if process is None:
                continue
            process.note_threads(distinct(batch.tid[batch.space == space_id]).tolist())
            if code is None:
                code = np.zeros(len(walk.pc), np.int32)
            for part, time_ns in _parts(process, batch.time_ns[lane[inside]]):
                search = partial(self._search_numbers, process, space, time_ns)
                bound = self._bound_frames(process, space, time_ns)
                code[inside[part]] = bound.by_pc.find_ids(lookup[inside[part]], search)
            for runtime in process.runtimes:
                frames = inside[_within(lookup[inside], runtime.stack_named)]
                if not len(frames):
                    continue
                known = bound.by_span
                for some in np.array_split(frames, range(_FRAMES, len(frames), _FRAMES)):
                    self.processes.between_lookups()
                    found = runtime.bind_frames(batch, walk, lane[some], some)
                    for frame, span in zip(some.tolist(), found, strict=True):
                        if span is None:
                            continue
                        if span not in known:
                            spans = process.spans_with(runtime, span)
                            known[span] = self._number_spans(process, space, int(lookup[frame]), spans)
                        code[frame] = known[span]
        self.processes.finish()
        return code

    def _candidate_ranges(self, space: AddressSpace) -> tuple[U64, U64]:
        """Return arrays (start, end) of an address space's modules that may be code without a file."""
        process = self.processes.known(space)
        runtimes = process.runtimes if process is not None else ()
        reserved = [runtime.reserved for runtime in runtimes if runtime.reserved[0] < runtime.reserved[1]]
        further = (*reserved, *(part for runtime in runtimes for part in runtime.code_ranges))
        known = self._candidates.get(space.id)
        if known is None or known[0] != further:
            candidates = ((m.start, m.end) for m in find_candidates(space))
            found = [part for part in candidates if not any(low <= part[0] < high for low, high in reserved)]
            found = sorted((*found, *further))
            ends = [min(end, (1 << 64) - 1) for _, end in found]  # a mapping may end at 2**64
            columns = (np.array([start for start, _ in found], np.uint64), np.array(ends, np.uint64))
            known = self._candidates[space.id] = further, *columns
        return known[1:]

    def _bound_frames(self, process: ProcessCode, space: AddressSpace, time_ns: int) -> _BoundFrames:
        """Return the cache of JIT code numbers for an address space at a time. The cache is emptied first if a
        description has changed.
        """
        mark, bound = process.mark(time_ns), self._bound.get(space.id)
        if bound is None or bound.mark != mark:
            bound = self._bound[space.id] = _BoundFrames(mark)
        return bound

    def _search_numbers(self, process: ProcessCode, space: AddressSpace, time_ns: int, lookup: U64) -> I64:
        """Return the number of the JIT code description at each lookup pc at a time, 0 where no code is described."""
        pcs, inverse = np.unique(lookup, return_inverse=True)
        numbers = [self._number(process, space, pc, time_ns) for pc in pcs.tolist()]
        return np.array(numbers, np.int64)[inverse]

    def _number(self, process: ProcessCode, space: AddressSpace, pc: int, time_ns: int) -> int:
        if self._images.image(space, pc) is not None:
            return 0
        return self._number_spans(process, space, pc, process.spans(pc, time_ns))

    def _number_spans(self, process: ProcessCode, space: AddressSpace, pc: int, spans: Spans) -> int:
        if not any(spans):
            return 0
        mapping = space.mapping_at(pc)
        key = (spans, mapping.start if mapping else 0)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self._next
            self._next += 1
            self._codes[number] = _Code(process, spans, space, pc)
            self._new_functions += process.is_read(spans)
        return number

    def take_new_functions(self) -> int:
        found, self._new_functions = self._new_functions, 0
        return found

    def runs_function(self, key: FrameKey) -> bool:
        """Return True if a frame runs a function of the program that a managed runtime describes."""
        return self._find_runtime(key) is not None and not self.is_entry(key)

    def is_entry(self, key: FrameKey) -> bool:
        """Return True if a frame is only a stub through which native code calls functions of a managed runtime."""
        found = self._find_runtime(key)
        return found is not None and found[0].is_entry(found[1], lookup_pc(key.pc, key.exact))

    def _find_runtime(self, key: FrameKey) -> tuple[ManagedRuntime, Span[Any]] | None:
        """Return the managed runtime that describes a frame, with its description, or None."""
        code = self._codes.get(key.code) if key.code else None
        if code is None:
            return None
        described = zip(code.process.sources, code.spans, strict=True)
        spans = {id(source): span for source, span in described if span is not None}
        runtimes = (runtime for runtime in code.process.runtimes if id(runtime) in spans)
        return next(((runtime, spans[id(runtime)]) for runtime in runtimes), None)

    @property
    def watched(self) -> bool:
        return self.processes.watched

    def update_code(self) -> None:
        self.processes.update_code()

    # The methods that the symbolizer calls.

    def description(self, number: int) -> Described:
        found = self._described.get(number)
        if found is None:
            code = self._codes[number]
            found = _describe(code.process, code.spans, code.space, code.pc)
            if not code.process.is_read(code.spans):  # a managed runtime may learn a name later
                self._described[number] = found
        return found

    def known_description(self, number: int) -> Described | None:
        code = self._codes.get(number)
        if number not in self._described and code is not None and code.process.is_read(code.spans):
            return self.description(number)
        return self._described.get(number)

    def late_description(self, space: AddressSpace, pc: int) -> Described | None:
        process = self.processes.known(space)
        if process is None:
            return None
        if space.process not in self._late:
            self._late.add(space.process)
            process.update(space, files_only=True)
        spans = process.first_spans(pc)
        return _describe(process, spans, space, pc) if any(spans) else None

    def end_lookup_round(self) -> None:
        """Record that a round of name lookups has ended. In each round, the files with a process's later descriptions
        of JIT code are read once.
        """
        self._late.clear()


def find_candidates(space: AddressSpace) -> list[Module]:
    """Return the modules of an address space that may be code without a file, ascending."""
    return [m for m in space.modules if m.path not in KERNELS and (not m.has_file or m.deleted)]


def _parts(process: ProcessCode, times: I64) -> Iterator[tuple[I64, int]]:
    """Divide samples into parts during which no description of JIT code changes. Yield (indices of the part's
    samples, time of one of them).
    """
    part = np.searchsorted(np.array(process.changes, np.int64), times, side="right")
    for which in distinct(part).tolist():
        members = np.flatnonzero(part == which)
        yield members, int(times[members].max())


def _describe(process: ProcessCode, spans: Spans, space: AddressSpace, pc: int) -> Described:
    known = {source.label: (source, span) for source, span in zip(process.sources, spans, strict=True) if span}
    label = next(iter(known))
    mapping = space.mapping_at(pc)
    start, end = (mapping.start, mapping.end) if mapping else (pc, pc + 1)
    module = Module(start, end, module_path(label), "00:00", 0, False, (mapping,) if mapping else ())
    image = name = None
    for source, span in (known[at] for at in NAME_ORDER if at in known):
        image = image or source.image(span, space)
        name = name if name and name.name else source.name(span)
    return Described(image.module if image else module, image, name or CodeName("", 0))


def _within(pcs: U64, ranges: Ranges) -> npt.NDArray[np.bool_]:
    """Return a bool array that is True for each pc that lies in one of several non-overlapping ranges."""
    if not ranges:
        return np.zeros(len(pcs), np.bool_)
    starts, ends = np.array(sorted(ranges), np.uint64).T
    at = np.searchsorted(starts, pcs, side="right") - 1
    inside: npt.NDArray[np.bool_] = (at >= 0) & (pcs < ends[at])
    return inside
