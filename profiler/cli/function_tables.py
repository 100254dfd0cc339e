"""The functions that tables in the terminal show, for native programs and for those with an interpreter."""

from __future__ import annotations

from functools import partial

from pyprof.model.function_costs import Cost, Costs, are_application, costs, is_of_runtime
from pyprof.model.profile import Frame, FrameKind, Profile
from pyprof.records import dataclass, replace
from pyprof.session.native_frame_views import with_frames

NATIVE_INCLUDED = ", native code included"
"""Addition to the heading of the first table of functions, in programs with an interpreter."""


@dataclass(frozen=True, slots=True)
class FunctionTables:
    """The costs of all functions, and those of native functions that an interpreter's functions call.

    Attributes:
        functions: Native code of libraries is part of the interpreter's or the application's function that calls it.
        native: Sorted by own cost, largest first. The own cost is the part that `functions` counts in the callers.
        is_interpreted: True if an interpreter's function is among them.
    """

    functions: Costs
    native: tuple[Cost, ...] = ()
    is_interpreted: bool = False


def function_tables(profile: Profile) -> FunctionTables:
    """Return the tables of functions of a profile's primary value."""
    found = costs(profile)
    if not is_interpreted(profile):
        return FunctionTables(found)
    shown = costs(by_caller(profile))
    counted = {cost.function: cost.own for cost in shown.functions}
    native = (
        replace(cost, own=cost.own - counted.get(cost.function, 0))
        for cost in found.functions
        if is_native(cost.function.kind)
    )
    dearest = sorted((cost for cost in native if cost.own > 0), key=lambda cost: (-cost.own, cost.function))
    return FunctionTables(shown, tuple(dearest), True)


def is_interpreted(profile: Profile) -> bool:
    """Return True if a profile has functions of an interpreter or of a just-in-time compiler (is_of_runtime())."""
    return any(is_of_runtime(profile, frame) for frame in profile.frames)


def is_native(kind: FrameKind) -> bool:
    """Return True for a native function, by the kind that functions_of() gives it."""
    return kind != FrameKind.INTERPRETER


def by_caller(profile: Profile) -> Profile:
    """Return a profile in which an interpreter's stacks have no native functions other than the application's."""
    frames, shown = list(profile.frames), list[int | None]()
    for at, frame in enumerate(profile.frames):
        inner = _of_application(profile, frame)
        if inner is not None and inner is not frame:
            at = len(frames)
            frames.append(inner)
        shown.append(None if inner is None else at)
    indices = profile.frame.tolist()
    return with_frames(
        replace(profile, frames=tuple(frames)), lambda node: shown[indices[node]], partial(is_of_runtime, profile)
    )


def _of_application(profile: Profile, frame: Frame) -> Frame | None:
    """Return a frame with only those of its functions that tables show, None if that is not one of them."""
    if frame.kind == FrameKind.MARKER or is_of_runtime(profile, frame):
        return frame
    are_own = are_application(profile, frame)
    if not any(are_own) or all(are_own):
        return frame if any(are_own) else None
    lines = zip(frame.lines, reversed(are_own), strict=True)
    return replace(frame, lines=tuple(line for line, is_own in lines if is_own))
