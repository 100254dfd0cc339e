"""Conversion of rows of the database to a Profile, with the cost of each stack over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pyprof.fleet.server.ingest.segment_to_rows import file_offset, frame_of, module_of
from pyprof.importers.profile_builder import About, Builder
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.model.analysis.confidence_interval import SamplingBasis, basis_of_sums
from pyprof.model.loss_reason_texts import Note, make_note
from pyprof.model.profile import Frame, Profile, ThreadInfo, ValueType
from pyprof.model.summary import Summary
from pyprof.model.thread_identity import Labels

Named = Callable[[Frame, str, int], Frame]
Stack = tuple[int, int]
_MIN_GAP_NS = 10**9
"""Minimum length of a gap between windows in nanoseconds. Windows that follow one another differ by less."""


@dataclass(frozen=True, slots=True)
class StackCost:
    """The cost of one stack in one part of the span of time that a query asks for.

    Attributes:
        thread: Name of the profile's thread to which the cost is added: the service, or "".
        end_ns: The end of the part of the span.
        squares: Sum of the squared values that the single samples stand for (squared_weights()).
    """

    stack: Stack
    thread: str
    labels: Labels
    end_ns: int
    value: int
    count: int
    squares: float


@dataclass(frozen=True, slots=True)
class Rest:
    """The number and the total amount of the stacks that a query's response leaves out because there are too many."""

    count: int
    amount: int


def dearest(costs: list[StackCost], most: int) -> tuple[list[StackCost], Rest]:
    """Return the costs of the `most` most expensive stacks, and the number and total cost of all other stacks."""
    sums: dict[Stack, int] = {}
    for cost in costs:
        sums[cost.stack] = sums.get(cost.stack, 0) + cost.value
    if len(sums) <= most:
        return costs, Rest(0, 0)
    left = sorted(sums, key=lambda stack: (-sums[stack], stack))[most:]
    out = set(left)
    return [cost for cost in costs if cost.stack not in out], Rest(len(left), sum(sums[stack] for stack in left))


@dataclass(frozen=True, slots=True)
class ProfileHead:
    """The properties of a profile that was merged from windows, apart from its samples.

    Attributes:
        start_ns: Begin of the first window since the epoch, in nanoseconds.
        end_ns: End of the last window.
        covered_ns: Time of all windows, in nanoseconds. It exceeds the time between them if there are several hosts.
        gaps: Times between `start_ns` and `end_ns` that no window covers.
        notes: Notes for the summary.
    """

    title: str
    value_type: ValueType
    start_ns: int
    end_ns: int
    covered_ns: int
    gaps: tuple[tuple[int, int], ...]
    notes: tuple[Note, ...]


def profile_of(
    costs: Sequence[StackCost], frames: Mapping[Stack, list[str]], head: ProfileHead, named: Named | None = None
) -> tuple[Profile, SamplingBasis | None]:
    """Return a profile of stack costs, and the number of samples on which its shares are based (SamplingBasis). The
    latter is None if values are measured and not sampled.

    The times of samples are those of the parts of the span. The duration is the time from the first window's begin to
    the last one's end: for a time axis, and for pprof's header, which states the total as a percentage of the duration.

    Args:
        costs: Costs of the stacks.
        frames: Frames of each stack, outermost first.
        head: The properties of the whole profile.
        named: Function that adds missing names to a frame, given a build ID and an offset in the file.
    """
    builder = Builder()
    numbers: dict[str, int] = {}
    stacks: dict[Stack, int] = {}
    lasted_ns = max(head.end_ns - head.start_ns, 0)
    for cost in sorted(costs, key=lambda each: (each.end_ns, each.stack, each.thread, each.labels)):
        node = stacks.get(cost.stack)
        if node is None:
            node = stacks[cost.stack] = builder.add_stack(_numbers(builder, numbers, frames.get(cost.stack, ()), named))
        thread = ThreadInfo(0, 0, cost.thread, "", labels=cost.labels)
        builder.add_sample(node, (cost.count, cost.value), thread, min(max(cost.end_ns - head.start_ns, 0), lasted_ns))
    kinds = (ValueType("samples", "count"), head.value_type)
    about = About(head.title, kinds, head.notes, head.start_ns, lasted_ns, 1, Summary())
    found = builder.build(about)
    samples, notes = int(found.values[:, 0].sum()), found.summary.notes
    if (basis := _basis(costs, head.value_type)) is not None:
        percent, width = 100 * basis.sampled, 100 * basis.half_width
        notes = (*notes, make_note("shares_of_windows", samples=basis.samples, percent=percent, width=width))
    return replace(found, gaps=head.gaps, summary=replace(found.summary, samples=samples, notes=notes)), basis


def spans_without_windows(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the times between windows that no window covers.

    Args:
        spans: (begin, end) of windows in any order.
    """
    found: list[tuple[int, int]] = []
    until = 0
    for begin, end in sorted(spans):
        if until and begin - until >= _MIN_GAP_NS:
            found.append((until, begin))
        until = max(until, end)
    return tuple(found)


def _basis(costs: Iterable[StackCost], kind: ValueType) -> SamplingBasis | None:
    """Return the number of samples from which the shares of stack costs are computed (SamplingBasis). Each cost may be
    the sum of many samples.
    """
    sampled = total = squares = 0.0
    for cost in costs:
        total, squares = total + cost.value, squares + cost.squares
        sampled += cost.value if cost.count else 0
    return basis_of_sums(sampled, total, squares) if kind.type == "cpu" and total else None


def _numbers(builder: Builder, numbers: dict[str, int], texts: Iterable[str], named: Named | None) -> list[int]:
    found = []
    for text in texts:
        number = numbers.get(text)
        if number is None:
            module = module_of(text)
            place = builder.add_module(module) if module is not None else -1
            frame, offset = frame_of(text, place), file_offset(text)
            if named is not None and module is not None and offset is not None:
                frame = named(frame, module.build_id, offset)
            number = numbers[text] = builder.add_frame(frame)
        found.append(number)
    return found
