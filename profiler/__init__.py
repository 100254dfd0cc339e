"""pyprof: a sampling profiler for live Linux processes.

    import pyprof

    pyprof.record(1234, duration=10).save("a.html")

The names below are imported when they are first used: `import pyprof` alone loads nothing.

agent/         The agent: it records what rules choose, for as long as the machine runs, and keeps windows in a spool
api            The library: what `import pyprof` gives
cli/           The command line; one file a subcommand
comparison/    Two profiles side by side: what each function cost in both, and which changes are more than chance
importers/     Files of other profilers as Profiles
model/         The values that travel through pyprof: samples in, walks, stacks, profiles out
objfile/       Object files: which file is behind a mapping, and what is in it
recording/     Recordings that last: a SQLite database that holds all of a profile
runtime_code/  Code that processes make at run time: who registered it, and what that says of rules and names
server/        The server: windows of many agents, kept as files, asked in a page and by HTTP
session/       The loop that ties collector, unwinder, stacks, names and exporters together
symbolize/     Names for addresses
tools/         What `inspect`, `symbols` and `doctor` are made of, and what `report` reads of files
diagnostics    Counters for what was tolerated, and problems of modules
errors         Named conditions
frame_sources  By what a frame is found: one table for options, help, pages and documentation
handover       The flushes that end windows: requested by their owner, acknowledged by the collector
options        Options of a recording, as values
records        Dataclasses that cost little to define
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyprof.api import attach, dump, record
    from pyprof.comparison.result import Comparison
    from pyprof.errors import PyprofError
    from pyprof.importers.registry import load
    from pyprof.model.profile import Profile
    from pyprof.model.several import merge
    from pyprof.options import DumpOptions, RecordOptions, RemoteOptions, TargetOptions
    from pyprof.session.recording import Recording
    from pyprof.session.snapshot import ThreadStacks

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "DumpOptions",
    "Profile",
    "PyprofError",
    "RecordOptions",
    "Recording",
    "RemoteOptions",
    "TargetOptions",
    "ThreadStacks",
    "attach",
    "dump",
    "load",
    "merge",
    "record",
]

_PLACES = {
    "Comparison": "pyprof.comparison.result",
    "DumpOptions": "pyprof.options",
    "Profile": "pyprof.model.profile",
    "PyprofError": "pyprof.errors",
    "RecordOptions": "pyprof.options",
    "Recording": "pyprof.session.recording",
    "RemoteOptions": "pyprof.options",
    "TargetOptions": "pyprof.options",
    "ThreadStacks": "pyprof.session.snapshot",
    "attach": "pyprof.api",
    "dump": "pyprof.api",
    "load": "pyprof.importers.registry",
    "merge": "pyprof.model.several",
    "record": "pyprof.api",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'pyprof' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return value


def load_ipython_extension(shell: object) -> None:
    """`%load_ext pyprof` calls it: IPython and Jupyter have `%%pyprof` then."""
    import_module("pyprof.cli.notebook").install(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
