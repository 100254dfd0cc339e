"""Names of frames, threads and weights, equal in every format."""

from __future__ import annotations

from pyprof.exporters.base import ExportOptions
from pyprof.lazy_dataclasses import dataclass
from pyprof.model.analysis.compiler_command_lines import program_name
from pyprof.model.analysis.function_costs import Function, functions_of, script_title
from pyprof.model.profile import Frame, FrameKind, Profile, ThreadInfo, ValueType
from pyprof.model.thread_identity import shown

UNKNOWN = "[unknown]"


@dataclass(frozen=True, slots=True)
class Level:
    """One function of a frame, which is one row of a flame graph: the frame's own function, or one inlined into it.

    Attributes:
        name: Name of the function, never "".
        module: Index into Profile.modules, -1 if none.
        file: Source file, None if not known.
        line: Source line, 0 if not known.
    """

    name: str
    kind: FrameKind
    module: int
    file: str | None = None
    line: int = 0


def frame_levels(profile: Profile, frame: Frame, options: ExportOptions) -> list[Level]:
    """Return the functions of one frame, outermost first: the real function, then the functions that were inlined into
    it.
    """
    if not frame.lines:
        return [Level(frame_title(profile, frame, options), frame.kind, frame.module)]
    *inlined, outermost = frame.lines
    name = outermost.function or outermost.system_name or UNKNOWN
    if not outermost.system_name:
        name = _with_path(profile, frame, name, options)
    return [
        Level(name, frame.kind, frame.module, outermost.file, outermost.line),
        *(
            Level(line.function or line.system_name or UNKNOWN, FrameKind.INLINE, frame.module, line.file, line.line)
            for line in reversed(inlined)
        ),
    ]


def frame_functions(profile: Profile, frame: Frame, options: ExportOptions) -> list[tuple[Function, Level]]:
    """Return the functions of one frame as pairs of identity (Function) and display (Level). A marker counts as a
    function.
    """
    named = frame_levels(profile, frame, options)
    known = [function for function, _ in functions_of(profile, frame)]
    return list(zip(known or [Function("", level.name, frame.kind) for level in named], named, strict=True))


def frame_title(profile: Profile, frame: Frame, options: ExportOptions) -> str:
    """Return the name by which outputs show a frame whose functions are unknown."""
    return _with_path(profile, frame, frame.title, options) or UNKNOWN


def _with_path(profile: Profile, frame: Frame, name: str, options: ExportOptions) -> str:
    """Return the name of code without a symbol. With the option full_paths, the path of the module replaces its file
    name.

    The result is "/path/of/module!0xstart" or "/path/of/module+0xrel".
    """
    if options.full_paths and frame.module >= 0:
        module = profile.modules[frame.module]
        if name.startswith((f"{module.name}+0x", f"{module.name}!0x", f"{module.name}[")):
            return module.path + name[len(module.name) :]
    return name


def module_name(profile: Profile, module: int, options: ExportOptions) -> str:
    """Return the name or path of the module with this index, "" for -1."""
    if module < 0:
        return ""
    info = profile.modules[module]
    return info.path if options.full_paths else info.name


def script_name(level: Level, options: ExportOptions) -> str:
    """Return the source file of an interpreter's frame, which outputs show in place of a module; "" for other
    frames.
    """
    if level.kind != FrameKind.INTERPRETER or not level.file:
        return ""
    return level.file if options.full_paths else script_title(level.file)


def thread_name(thread: ThreadInfo) -> str:
    """Return a thread's name with its tid. A thread without a tid, as in merged windows of many agents, has only its
    name.
    """
    name = _own_name(thread)
    return f"{name or 'thread'} (tid {thread.tid})" if thread.tid else name or "all threads"


def labelled_name(profile: Profile, thread: ThreadInfo) -> str:
    """Return the name of a thread, followed by those of its labels that are not common to all threads of the
    profile.
    """
    own = shown(tuple(label for label in thread.labels if label not in profile.labels.items()))
    return f"{_own_name(thread)} [{own}]" if own else _own_name(thread)


def _own_name(thread: ThreadInfo) -> str:
    """Return the name of a thread. The main thread of a compiler has the process's name, which includes the compiled
    source file.
    """
    is_first = thread.pid == thread.tid and program_name(thread.process) == thread.name
    return thread.process if is_first else thread.name


def process_name(thread: ThreadInfo) -> str:
    return f"{thread.process or 'process'} (pid {thread.pid})"


def root_names(profile: Profile, thread: ThreadInfo, options: ExportOptions) -> list[str]:
    """Return the names of process and thread that stand above the stacks of a thread, outermost first, as the options
    request.
    """
    process = (options.processes or options.threads) and profile.has_processes
    return [process_name(thread)] * process + [thread_name(thread)] * options.threads


def count_column(profile: Profile) -> int:
    """Return the index of the column of Profile.values that counts samples. If there is none, return that of the
    primary column.
    """
    for column, value_type in enumerate(profile.value_types):
        if value_type == ValueType("samples", "count"):
            return column
    return len(profile.value_types) - 1
