"""The functions that tables in the terminal show, for native programs and for those with an interpreter."""

from __future__ import annotations

from pyprof.model.functions import Cost, Costs, costs
from pyprof.model.profile import FrameKind, Profile
from pyprof.records import dataclass, replace
from pyprof.session.native_views import viewed


@dataclass(frozen=True, slots=True)
class FunctionTables:
    """The costs of all functions, and those of native functions that an interpreter's functions call.

    Attributes:
        functions: Native code below an interpreter's function is part of that function.
        native: Sorted by own cost, largest first. The own cost is the part that `functions` counts in the callers.
        is_interpreted: True if an interpreter's function is among them.
    """

    functions: Costs
    native: tuple[Cost, ...] = ()
    is_interpreted: bool = False


def function_tables(profile: Profile) -> FunctionTables:
    """Return the tables of a profile's primary value."""
    found = costs(profile)
    if not any(cost.function.kind == FrameKind.INTERPRETER for cost in found.functions):
        return FunctionTables(found)
    shown = costs(viewed(profile, "none"))
    counted = {cost.function: cost.own for cost in shown.functions}
    native = (
        replace(cost, own=cost.own - counted.get(cost.function, 0))
        for cost in found.functions
        if cost.function.kind != FrameKind.INTERPRETER
    )
    dearest = sorted((cost for cost in native if cost.own > 0), key=lambda cost: (-cost.own, cost.function))
    return FunctionTables(shown, tuple(dearest), True)
