"""The list of collectors of live processes.

Importing it is cheap: a collector's folder is imported only when the collector is asked. A new collector needs a module
with can() and open(), and an entry in COLLECTORS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from pyprof.errors import NoSuchProcess, PyprofError, UsageError
from pyprof.records import dataclass, replace

if TYPE_CHECKING:
    from pyprof.collectors.base import Collector
    from pyprof.collectors.targets.collector_request import CollectorTarget, InterpreterReaders, Request
    from pyprof.collectors.targets.selection import Selection
    from pyprof.diagnostics import Diagnostics, Finding
    from pyprof.options import CollectOptions

AUTO = "auto"
"""The --collector name that selects the first collector that can do what is requested."""


class _Opening(Protocol):
    """The protocol of a module that opens a collector."""

    def can(self, target: CollectorTarget, options: CollectOptions) -> PyprofError | None: ...

    def open(self, request: Request) -> Collector: ...


@dataclass(frozen=True, slots=True)
class CollectorSpec:
    """The description of a collector: its name, its opening function, its use.

    Attributes:
        name: The collector's name for --collector.
        opening: Module below this folder that opens the collector.
        summary: One phrase for --help.
        kernel: True if it can show frames of the kernel.
        in_auto: False if AUTO does not choose it directly, but through another collector and for some processes.
        wakers: True if it can report which thread ended a wait.
    """

    name: str
    opening: str
    summary: str
    kernel: bool
    in_auto: bool = True
    wakers: bool = False

    def can(self, target: CollectorTarget, options: CollectOptions) -> PyprofError | None:
        """Return None if the collector can be used, else an error with the reason and a hint."""
        return self._opening().can(target, options)

    def open(self, request: Request) -> Collector:
        """Open this collector for a request of a recording.

        Raises:
            CollectorRefused: Another collector may do.
            PyprofError: Any other error of the collector.
        """
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
    CollectorSpec("ptrace", "hybrid.ptrace_opening", "short stops", False),
)
"""All collectors, in the order in which AUTO tries them."""


def list_names() -> tuple[str, ...]:
    """Return the names that --collector accepts, the default first."""
    return (AUTO, *(spec.name for spec in COLLECTORS))


def list_summaries() -> str:
    """Return one phrase for each collector, as a text for --help."""
    return "; ".join(f"{spec.name}: {spec.summary}" for spec in COLLECTORS)


def find_collector(name: str) -> CollectorSpec:
    """Return the description of the collector with this name.

    Raises:
        UsageError: There is no such collector.
    """
    for spec in COLLECTORS:
        if spec.name == name:
            return spec
    raise UsageError(f"there is no collector {name!r}", f"the collectors are {', '.join(list_names())}")


def can_show_kernel(name: str) -> bool:
    """Return True if a name accepted by --collector can show frames of the kernel."""
    return any(spec.kernel for spec in COLLECTORS if name in (AUTO, spec.name))


def can_report_wakers(name: str) -> bool:
    """Return True if a name accepted by --collector can report which thread ended a wait."""
    return any(spec.wakers for spec in COLLECTORS if name in (AUTO, spec.name))


def open_collector(
    name: str,
    selection: Selection,
    options: CollectOptions,
    diagnostics: Diagnostics,
    interpreters: InterpreterReaders | None = None,
    program: str = "",
) -> Collector:
    """Open a collector for the selected processes.

    If a selected process ends before it is opened, the collector is opened for the others. The notes in the collector's
    statistics state which collector AUTO chose, and why.

    Args:
        name: One of list_names().
        program: See Request.

    Raises:
        PyprofError: The collector's error. For AUTO, the first collector's reason if none can be used.
    """
    from pyprof.collectors.targets.collector_request import Request

    request = Request(selection, options, diagnostics, interpreters, program)
    while True:
        try:
            return (
                _first_possible(request) if name == AUTO else find_collector(name).open(replace(request, by_name=True))
            )
        except NoSuchProcess:
            left = request.selection.without_ended()
            if left is None:
                raise
            request = replace(request, selection=left)


def _first_possible(request: Request) -> Collector:
    from pyprof.collectors.base import CollectorRefused, PartialVisibility

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
        if isinstance(refusal, PartialVisibility):
            partial.append(spec)
    for spec in partial:
        return spec.open(replace(request, refusals=tuple(refusals)))
    raise refusals[0]


def list_findings(target: CollectorTarget, options: CollectOptions) -> list[Finding]:
    """Return one finding for each collector: whether it can be used here and for this target."""
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
