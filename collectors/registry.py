"""The list of collectors of live processes for the command line, and the function that opens a collector.

Importing this module is cheap: the collectors' packages are imported only when a collector is opened.
sampling_source_plan.py chooses among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyprof.errors import NoSuchProcess, UsageError
from pyprof.lazy_dataclasses import dataclass, replace
from pyprof.options import AUTO

if TYPE_CHECKING:
    from pyprof.collectors.base import Collector
    from pyprof.collectors.targets.process_selection import InterpreterReaders, Selection
    from pyprof.options import CollectOptions
    from pyprof.problem_counters import Diagnostics


@dataclass(frozen=True, slots=True)
class CollectorSpec:
    """The description of a collector: its name and its use.

    Attributes:
        name: The collector's name for the option --collector.
        summary: One phrase for --help.
        kernel: True if it can show frames of the kernel.
        wakers: True if it can report which thread ended a wait (--wakers).
    """

    name: str
    summary: str
    kernel: bool
    wakers: bool = False


COLLECTORS: tuple[CollectorSpec, ...] = (
    CollectorSpec(
        "bpf",
        "a program in the kernel takes the samples, Python functions included; only threads with stacks of over "
        "2 MB are stopped",
        kernel=True,
        wakers=True,
    ),
    CollectorSpec(
        "perf", "the kernel takes the samples, only threads with stacks of over 64 KB are stopped", kernel=True
    ),
    CollectorSpec("ptrace", "short stops", kernel=False),
)
"""Descriptions of all collectors of live processes."""


def list_names() -> tuple[str, ...]:
    """Return the names that the option --collector accepts, the default first."""
    return (AUTO, *(spec.name for spec in COLLECTORS))


def list_summaries() -> str:
    """Return one phrase for each collector, as a text for --help."""
    return "; ".join(f"{spec.name}: {spec.summary}" for spec in COLLECTORS)


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

    If a selected process ends meanwhile, the collector is opened for the remaining ones. The notes in the
    collector's statistics state which collector AUTO chose, and why.

    Args:
        name: One of list_names().
        program: Path of the program that the process will execute, "" for none. Only the new program is
            recorded.

    Raises:
        UsageError: There is no such collector.
        PyprofError: The collector cannot be opened. For AUTO, no collector can be used, and the error says
            why.
    """
    from pyprof.collectors.combined.source_switching_collector import open_planned
    from pyprof.collectors.targets.process_selection import Request

    if name not in list_names():
        raise UsageError(f"there is no collector {name!r}", f"the collectors are {', '.join(list_names())}")
    request = Request(selection, options, diagnostics, interpreters, program)
    while True:
        try:
            return open_planned(request, name)
        except NoSuchProcess:
            left = request.selection.without_ended()
            if left is None:
                raise
            request = replace(request, selection=left)
