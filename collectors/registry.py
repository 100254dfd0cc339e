"""The one list of collectors of live processes. Importing it is cheap: a collector's room is imported when it is asked.

A new one is a room with a module that has can() and open(), and a line in COLLECTORS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from pyprof.errors import NoSuchProcess, PyprofError, UsageError
from pyprof.records import dataclass, replace

if TYPE_CHECKING:
    from pyprof.collectors.base import Collector
    from pyprof.collectors.targets.request import CollectorTarget, InterpreterReaders, Request
    from pyprof.collectors.targets.selection import Selection
    from pyprof.diagnostics import Diagnostics, Finding
    from pyprof.options import CollectOptions

AUTO = "auto"
"""In place of a name: the first collector that can do what is asked."""


class _Opening(Protocol):
    """The module that opens a collector."""

    def can(self, target: CollectorTarget, options: CollectOptions) -> PyprofError | None: ...

    def open(self, request: Request) -> Collector: ...


@dataclass(frozen=True, slots=True)
class CollectorSpec:
    """name: as in --collector. opening: the module that opens it, in this folder. summary: one phrase for --help.
    kernel: can it show frames of the kernel? wakers: can it say who ended waits? in_auto: False: AUTO takes it through
    another one, for some processes.
    """

    name: str
    opening: str
    summary: str
    kernel: bool
    in_auto: bool = True
    wakers: bool = False

    def can(self, target: CollectorTarget, options: CollectOptions) -> PyprofError | None:
        """None for yes; else why not, with what mends it."""
        return self._opening().can(target, options)

    def open(self, request: Request) -> Collector:
        """Raises CollectorRefused where another collector may do, and what else the collectors raise."""
        return self._opening().open(request)

    def _opening(self) -> _Opening:
        return cast("_Opening", import_module(f"pyprof.collectors.{self.opening}"))


COLLECTORS: tuple[CollectorSpec, ...] = (
    CollectorSpec(
        "bpf",
        "hybrid.bpf_opening",
        "a program in the kernel takes the samples, Python functions included; only threads with stacks of over "
        "256 KB are stopped",
        True,
        wakers=True,
        in_auto=False,
    ),
    CollectorSpec(
        "perf",
        "hybrid.opening",
        "the kernel takes the samples, only threads with stacks of over 64 KB are stopped",
        True,
    ),
    CollectorSpec("ptrace", "hybrid.stops_opening", "short stops", False),
)
"""In the order in which AUTO asks them."""


def names() -> tuple[str, ...]:
    """What --collector accepts, the default first."""
    return (AUTO, *(spec.name for spec in COLLECTORS))


def summaries() -> str:
    """One phrase for each name."""
    return "; ".join(f"{spec.name}: {spec.summary}" for spec in COLLECTORS)


def by_name(name: str) -> CollectorSpec:
    """Raises UsageError where no collector has it."""
    for spec in COLLECTORS:
        if spec.name == name:
            return spec
    raise UsageError(f"there is no collector {name!r}", f"the collectors are {', '.join(names())}")


def shows_kernel(name: str) -> bool:
    """Can a collector of this name, as --collector has it, show frames of the kernel?"""
    return any(spec.kernel for spec in COLLECTORS if name in (AUTO, spec.name))


def reports_wakers(name: str) -> bool:
    """Can a collector of this name say who ended waits?"""
    return any(spec.wakers for spec in COLLECTORS if name in (AUTO, spec.name))


def open_collector(
    name: str,
    selection: Selection,
    options: CollectOptions,
    diagnostics: Diagnostics,
    interpreters: InterpreterReaders | None = None,
    program: str = "",
) -> Collector:
    """name: of names(). The notes of the collector's statistics say which one AUTO took and why. program: see Request.

    Raises what the collectors raise; of AUTO, where none of them can, the reason of the first. Of several processes
    some may end before they are opened: then it is opened for the others.
    """
    from pyprof.collectors.targets.request import Request

    request = Request(selection, options, diagnostics, interpreters, program)
    while True:
        try:
            return _first_possible(request) if name == AUTO else by_name(name).open(replace(request, by_name=True))
        except NoSuchProcess:
            left = request.selection.without_ended()
            if left is None:
                raise
            request = replace(request, selection=left)


def _first_possible(request: Request) -> Collector:
    from pyprof.collectors.base import CollectorRefused, SeesPart

    refusals: list[PyprofError] = []
    partial: list[CollectorSpec] = []
    for spec in filter(lambda spec: spec.in_auto, COLLECTORS):
        refusal = spec.can(request.target, request.options)
        if refusal is None:
            try:
                return spec.open(replace(request, refusals=tuple(refusals)))
            except CollectorRefused as error:
                refusal = error
        refusals.append(refusal)
        if isinstance(refusal, SeesPart):
            partial.append(spec)
    for spec in partial:
        return spec.open(replace(request, refusals=tuple(refusals)))
    raise refusals[0]


def findings(target: CollectorTarget, options: CollectOptions) -> list[Finding]:
    """Which collectors can be used, one finding each."""
    from pyprof.diagnostics import Finding

    found = []
    for spec in COLLECTORS:
        refusal = spec.can(target, options)
        text = "yes" if refusal is None else f"no: {refusal.message}"
        found.append(Finding(refusal is None, f"--collector {spec.name}: {text}", refusal.hint if refusal else ""))
        if spec.wakers:
            text = "yes" if refusal is None else f"no: they need --collector {spec.name}"
            found.append(Finding(refusal is None, f"--wakers, --mode lock: {text}", refusal.hint if refusal else ""))
    return found
