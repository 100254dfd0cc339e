"""pyprof: a sampling profiler for live Linux processes.

    import pyprof

    pyprof.record(1234, duration=10).save("a.html")

The public names are imported when they are first used: `import pyprof` alone loads nothing.

api                The functions of the library, which `import pyprof` exports
cli/               The command line, one file for each subcommand
collector_control  Control of a running collector by its recording: flushes at the ends of windows, the end, and sparser
                   sampling
comparison/        Comparison of two profiles: costs of each function, and changes that are significant
errors             Exceptions that pyprof raises
fleet/             Continuous profiling of a fleet: the agent, the server, and their commands. The profiler never
                   imports this package
importers/         Converts files of other profilers to Profiles
lazy_dataclasses   Dataclasses that are cheap to define
model/             The values of pyprof: samples, walks, stacks, profiles
objfile/           Object files: the file behind a mapping, and its contents
options            Options of a recording, as values, and the table of frame sources. The command line or a caller of
                   the library makes them
problem_counters   Counters of tolerated events, and problems of modules
recording/         Recording files: a SQLite database that holds a complete profile
runtime_code/      Code that processes generate at run time: its registration, unwind rules and names
session/           The core of the library: recordings, from the collector's samples to named profiles
symbolize/         Names for addresses
tools/             The functions behind `inspect`, `symbols` and `doctor`, and file access for `report`
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing takes 5 ms, and Ctrl-C prints a traceback until __main__ runs
if TYPE_CHECKING:
    from pyprof.api import attach, dump, record
    from pyprof.comparison.result import Comparison
    from pyprof.errors import PyprofError
    from pyprof.importers.registry import load
    from pyprof.model.analysis.merge import merge
    from pyprof.model.profile import Profile
    from pyprof.options import DumpOptions, RecordOptions, RemoteOptions, TargetOptions
    from pyprof.session.recording import Recording
    from pyprof.session.thread_dump import ThreadStacks

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
    "ThreadStacks": "pyprof.session.thread_dump",
    "attach": "pyprof.api",
    "dump": "pyprof.api",
    "load": "pyprof.importers.registry",
    "merge": "pyprof.model.analysis.merge",
    "record": "pyprof.api",
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _PLACES:
            raise AttributeError(f"module 'pyprof' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_PLACES[name]), name)
        return value


def load_ipython_extension(shell: object) -> None:
    """Install the `%%pyprof` magic. IPython and Jupyter call this for `%load_ext pyprof`."""
    import_module("pyprof.cli.ipython_magic").install(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
