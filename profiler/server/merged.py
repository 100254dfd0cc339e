"""Conversion of rows of the database to a Profile, with the cost of each stack over time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from pyprof.importers.builder import About, Builder
from pyprof.model.labels import Labels
from pyprof.model.profile import Frame, Profile, ThreadInfo, ValueType
from pyprof.model.reasons import said
from pyprof.model.share_interval import profile_basis
from pyprof.model.summary import Summary
from pyprof.records import dataclass, replace
from pyprof.server.frames import file_offset, frame_of, module_of

Named = Callable[[Frame, str, int], Frame]
Stack = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StackCost:
    """The cost of a stack in one part of the span.

    Attributes:
        thread: Name of the thread, which stands for the service.
        end_ns: Time of the part.
    """

    stack: Stack
    thread: str
    labels: Labels
    end_ns: int
    value: int
    count: int


@dataclass(frozen=True, slots=True)
class Rest:
    """The number of stacks that were left out of a response, and their amount together."""

    count: int
    amount: int


def dearest(costs: list[StackCost], most: int) -> tuple[list[StackCost], Rest]:
    """Return the costs of the `most` most expensive stacks, and what was left out."""
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
    """Properties of a whole profile.

    Attributes:
        covered_ns: Time that windows cover.
        note: What was left out.
    """

    title: str
    value_type: ValueType
    from_ns: int
    covered_ns: int
    note: str


def profile_of(
    costs: Iterable[StackCost], frames: Mapping[Stack, list[str]], head: ProfileHead, named: Named | None = None
) -> Profile:
    """Build a profile. Sample times are those of the span's parts; the duration is the time that windows cover.

    Args:
        named: Adds missing names to a frame, given its build ID and its offset in the file.
    """
    builder = Builder()
    numbers: dict[str, int] = {}
    stacks: dict[Stack, int] = {}
    for cost in sorted(costs, key=lambda each: (each.end_ns, each.stack, each.thread, each.labels)):
        node = stacks.get(cost.stack)
        if node is None:
            node = stacks[cost.stack] = builder.stack(_numbers(builder, numbers, frames.get(cost.stack, ()), named))
        thread = ThreadInfo(0, 0, cost.thread, "", labels=cost.labels)
        builder.sample(node, (cost.count, cost.value), thread, max(cost.end_ns - head.from_ns, 0))
    kinds = (ValueType("samples", "count"), head.value_type)
    about = About(head.title, kinds, head.note, head.from_ns, head.covered_ns, 1, Summary())
    found = builder.build(about)
    samples, notes = int(found.values[:, 0].sum()), found.summary.notes
    if (basis := profile_basis(found)) is not None:
        count, width = f"{basis.samples:,.0f}", f"{100 * basis.half_width:.1f}"
        notes = (*notes, said("shares_of_windows", samples=count, sampled=round(100 * basis.sampled), width=width))
    return replace(found, summary=replace(found.summary, samples=samples, notes=notes))


def _numbers(builder: Builder, numbers: dict[str, int], texts: Iterable[str], named: Named | None) -> list[int]:
    found = []
    for text in texts:
        number = numbers.get(text)
        if number is None:
            module = module_of(text)
            place = builder.module(module) if module is not None else -1
            frame, offset = frame_of(text, place), file_offset(text)
            if named is not None and module is not None and offset is not None:
                frame = named(frame, module.build_id, offset)
            number = numbers[text] = builder.frame(frame)
        found.append(number)
    return found
