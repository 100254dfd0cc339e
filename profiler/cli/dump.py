"""`pyprof dump`: the stacks of all threads, now, or as a core file has them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal
from pyprof.cli.arguments import bytes_size, positive_int, source_list, unwind_options
from pyprof.cli.remote import GDB_HELP, remote_options
from pyprof.options import DEFAULT_MAX_DEPTH, DEFAULT_SOURCES, DEFAULT_STACK_SIZE, CollectOptions

if TYPE_CHECKING:
    from pyprof.cli.crash import CrashSignal
    from pyprof.model.profile import Frame, Profile, ThreadInfo
    from pyprof.model.walk import StackEnd

_SLOW_LINK_S = 60.0

DESCRIPTION = """\
Print the stacks of all threads of a process as they are now: state, name, and for each
frame how it was found. Sleeping threads are read without stopping them. With --core: as
they were when the process died, the thread that got the signal first.
"""

EPILOG = """\
The last column says how each frame was found: context (the innermost: the kernel's registers),
sframe, eh_frame, debug_frame (unwind tables), breakpad (a symbol file), fp (frame pointer),
lr (link register), sigreturn (the kernel's signal frame), inlined (DWARF: in the function below it).

exit status:
  0 all stacks whole, 3 some cut short (of a core also: files are missing), 1 error,
  2 wrong usage.

examples:
  pyprof dump -p 1234
  pyprof dump -p 1234 --json | jq '.threads[] | {tid, state, top: .frames[0].function}'
  pyprof dump --gdb board:2345 --sysroot /usr/arm-linux-gnueabihf
  pyprof dump --core core
  pyprof dump --core core.arm --exe ./server --sysroot /srv/board
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "dump",
        help="print the stacks of all threads now",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-p", "--pid", type=positive_int, metavar="PID", help="the process")
    target.add_argument("--gdb", metavar="HOST:PORT", help=GDB_HELP)
    target.add_argument("--core", metavar="CORE", help="a core file instead of a process")
    parser.add_argument("--exe", metavar="FILE", default="", help="with --core, --gdb: the program's file here")
    parser.add_argument("--sysroot", metavar="DIR", default="", help="with --core, --gdb: where the target's files are")
    parser.add_argument("--json", action="store_true", help="as JSON, innermost frame first; a stable form")
    parser.add_argument("--full-paths", action="store_true", help="modules by their path instead of their name")
    parser.add_argument("--unwind", type=source_list, default=DEFAULT_SOURCES, metavar="LIST", help="see record")
    parser.add_argument("--symbols", action="append", default=[], metavar="PATH|URL", help="see record")
    parser.add_argument("--max-depth", type=positive_int, default=DEFAULT_MAX_DEPTH, metavar="N", help="see record")
    parser.add_argument("--stack-size", type=bytes_size, default=DEFAULT_STACK_SIZE, metavar="BYTES", help="see record")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class ThreadDump:
    """One thread: its stack innermost first, markers left out, and why the stack ended there."""

    info: ThreadInfo
    state: str
    end: StackEnd
    frames: list[Frame]


@dataclass(frozen=True)
class Subject:
    """What was dumped. states: by tid. order: tids as they are printed, () for ascending. signal: what killed it.

    unseen: threads without a sample.
    """

    pid: int
    exe: str
    arch: str
    profile: Profile
    states: dict[int, str]
    order: tuple[int, ...] = ()
    signal: CrashSignal | None = None
    core: str = ""
    unseen: tuple[ThreadDump, ...] = ()


def run(arguments: argparse.Namespace) -> int:
    import orjson

    from pyprof.errors import UsageError
    from pyprof.model.walk import StackEnd

    if arguments.pid and (arguments.exe or arguments.sysroot):
        raise UsageError("--exe and --sysroot belong to --core", "pyprof dump --core CORE --exe FILE --sysroot DIR")
    subject = of_core(arguments) if arguments.core else of_stub(arguments) if arguments.gdb else of_process(arguments)
    profile = subject.profile
    threads = [*thread_dumps(profile, subject.states), *subject.unseen]
    place = {tid: at for at, tid in enumerate(subject.order)}
    threads.sort(key=lambda thread: place.get(thread.info.tid, 0))
    if arguments.json:
        terminal.json(document(subject, threads), orjson.OPT_INDENT_2)
    else:
        for text in header_lines(subject):
            terminal.line(text)
        for thread in threads:
            for text in text_lines(thread, profile, arguments.full_paths):
                terminal.line(text)
    if subject.core:
        complain_of_core(profile)
    elif not arguments.json:
        for key, count in profile.summary.errors.items():
            terminal.complain(f"{key}: {count}")
    whole = bool(threads) and all(t.end == StackEnd.ROOT for t in threads)
    return 0 if whole and not (subject.core and lacks_files(profile)) else 3


def lacks_files(profile: Profile) -> bool:
    """Stacks may miss frames: not all files of their modules are known."""
    from pyprof.collectors.core_modules import NO_PROGRAM, OTHER_PROGRAM
    from pyprof.objfile.images import DIFFERS, NOT_COMPARED, NOT_FOUND

    return not profile.summary.errors.keys().isdisjoint({DIFFERS, NOT_COMPARED, NOT_FOUND, NO_PROGRAM, OTHER_PROGRAM})


def of_process(arguments: argparse.Namespace) -> Subject:
    """A live process."""
    from pyprof.collectors import attach, procfs
    from pyprof.collectors.ptrace import PtraceCollector
    from pyprof.diagnostics import Diagnostics
    from pyprof.session.session import Session

    pid: int = arguments.pid
    unwind = unwind_options(arguments)
    attach.check_target(pid)
    states = {tid: procfs.state(pid, tid) for tid in procfs.tasks(pid)}
    exe, arch = procfs.exe(pid), procfs.arch(pid).name
    collect = CollectOptions(rate_hz=500, idle=True, stack_size=arguments.stack_size, flush_s=0)
    diagnostics = Diagnostics()
    session = Session(
        PtraceCollector(pid, collect, diagnostics),
        unwind,
        diagnostics,
    )
    window = session.snapshot(lambda: set(tasks(pid)))
    profile = session.profile(window, exe, collect.rate_hz, idle=True)
    return Subject(pid, exe, arch, profile, states, unseen=tuple(unseen(pid, profile, states)))


def of_stub(arguments: argparse.Namespace) -> Subject:
    """What runs behind a GDB stub."""
    from pyprof.collectors.gdb_remote import GdbRemoteCollector
    from pyprof.diagnostics import Diagnostics
    from pyprof.session.session import Session

    remote = remote_options(arguments)
    assert remote is not None
    collect = CollectOptions(rate_hz=500, idle=True, stack_size=arguments.stack_size, flush_s=0)
    diagnostics = Diagnostics()
    collector = GdbRemoteCollector(remote, collect, diagnostics)
    session = Session(collector, unwind_options(arguments), diagnostics)
    window = session.snapshot(lambda: set(collector.states()), most_s=_SLOW_LINK_S)
    profile = session.profile(window, collector.path, collect.rate_hz, idle=True)
    return Subject(collector.pid, collector.path, collector.arch.name, profile, collector.states())


def of_core(arguments: argparse.Namespace) -> Subject:
    """A core file."""
    from pyprof.cli.crash import crash_signal
    from pyprof.collectors.core_file import CoreFileCollector
    from pyprof.diagnostics import Diagnostics
    from pyprof.session.session import Session

    diagnostics = Diagnostics()
    collector = CoreFileCollector(arguments.core, arguments.exe, arguments.sysroot, arguments.stack_size, diagnostics)
    session = Session(collector, unwind_options(arguments), diagnostics)
    window, _ = session.run(None, lambda window, number: None, lambda: None)
    if session.failure is not None:
        raise session.failure
    profile = session.profile(window, collector.exe, 1.0, idle=True)
    signal = crash_signal(collector.crashed)
    states = dict.fromkeys(collector.order, "stopped")
    if signal and collector.order:
        states[collector.order[0]] = "crashed"
    return Subject(
        collector.pid,
        collector.exe,
        collector.arch.name,
        profile,
        states,
        tuple(collector.order),
        signal,
        arguments.core,
    )


def header_lines(subject: Subject) -> Iterator[str]:
    if not subject.core:
        yield f"process {subject.pid} {subject.exe} ({subject.arch})"
        return
    yield f"core {subject.core} of process {subject.pid} {subject.exe} ({subject.arch})"
    if subject.signal:
        yield f"killed by {subject.signal.text}"


def complain_of_core(profile: Profile) -> None:
    """What was tolerated, what modules lack and what mends it; each remedy once."""
    from pyprof.collectors.core_modules import NO_PROGRAM, OTHER_PROGRAM
    from pyprof.objfile.images import REMEDY

    said = set()
    for key, count in profile.summary.errors.items():
        remedy = REMEDY if key in (NO_PROGRAM, OTHER_PROGRAM) else ""
        terminal.complain(f"{key}: {count}", remedy)
        said.add(remedy)
    for module in profile.summary.modules:
        for problem in module.problems:
            remedy = "" if problem.remedy in said else problem.remedy
            terminal.complain(f"{module.path}: {problem.text}", remedy)
            said.add(remedy)


def thread_dumps(profile: Profile, states: dict[int, str]) -> Iterator[ThreadDump]:
    """The last sample of each thread, by tid."""
    from pyprof.model.profile import FrameKind
    from pyprof.model.walk import StackEnd

    last = dict(zip(profile.thread.tolist(), profile.stack.tolist(), strict=True))
    for index, info in enumerate(profile.threads):
        path = profile.path(last[index])
        end = StackEnd.ROOT
        if not path:
            end = StackEnd.UNREADABLE
        elif path[0].kind == FrameKind.MARKER:
            end = StackEnd(path[0].pc)
            path = path[1:]
        yield ThreadDump(info, states.get(info.tid, "running"), end, path[::-1])


def unseen(pid: int, profile: Profile, states: dict[int, str]) -> Iterator[ThreadDump]:
    """Threads that are there and did not let themselves be looked at: held by a debugger, or without a processor."""
    from pyprof.collectors import procfs
    from pyprof.model.profile import ThreadInfo
    from pyprof.model.walk import StackEnd

    known = {thread.tid for thread in profile.threads}
    for tid in tasks(pid):
        if tid not in known:
            info = ThreadInfo(pid, tid, procfs.name(tid), procfs.name(pid))
            yield ThreadDump(info, states.get(tid, "running"), StackEnd.UNREADABLE, [])


def tasks(pid: int) -> list[int]:
    """Tids, none once the process has ended."""
    from pyprof.collectors import procfs

    try:
        return [tid for tid in procfs.tasks(pid) if procfs.state(pid, tid) != "zombie"]
    except ProcessLookupError:
        return []


def text_lines(thread: ThreadDump, profile: Profile, full_paths: bool) -> Iterator[str]:
    yield ""
    name = f'"{thread.info.name}" ' if thread.info.name else ""
    yield f"thread {thread.info.tid} {name}{thread.state}"
    number = 0
    for frame in thread.frames:
        module = profile.modules[frame.module] if frame.module >= 0 else None
        place = (module.path if full_paths else module.name) if module else ""
        rows = frame.lines or (None,)
        for depth, line in enumerate(rows):
            inlined = depth < len(rows) - 1
            name = line.function if line else frame.title
            if line and not inlined:
                name += f"+{line.offset:#x}"
            source = f" at {line.file}:{line.line}" if line and line.file else ""
            found = "inlined" if inlined else frame.trust.label
            yield f"  #{number:<3} {frame.pc:#018x}  {name}{source}  {place}  [{found}]"
            number += 1
    from pyprof.model.walk import StackEnd

    if thread.end != StackEnd.ROOT:
        yield f"  [cut short: {thread.end.label}]"


def document(subject: Subject, threads: list[ThreadDump]) -> dict[str, Any]:
    """The stable form of --json; signal and problems: of a core only."""
    profile = subject.profile
    found: dict[str, Any] = {"pid": subject.pid, "exe": subject.exe, "arch": subject.arch}
    if subject.core:
        found["signal"] = subject.signal.to_json() if subject.signal else None
        found["problems"] = [
            {"module": module.path, "build_id": module.build_id or None, "text": problem.text, "remedy": problem.remedy}
            for module in profile.summary.modules
            for problem in module.problems
        ]
    found["threads"] = [
        {
            "tid": t.info.tid,
            "name": t.info.name,
            "state": t.state,
            "end": t.end.label,
            "frames": [entry for frame in t.frames for entry in frame_json(frame, profile)],
        }
        for t in threads
    ]
    return found


def frame_json(frame: Frame, profile: Profile) -> Iterator[dict[str, Any]]:
    """One entry a function: those inlined into the frame first."""
    module = profile.modules[frame.module] if frame.module >= 0 else None
    for depth, line in enumerate(frame.lines or (None,)):
        yield {
            "pc": f"{frame.pc:#x}",
            "module": module.path if module else None,
            "build_id": (module.build_id or None) if module else None,
            "rel": f"{frame.rel:#x}",
            "function": line.function if line else None,
            "offset": line.offset if line else None,
            "file": line.file if line else None,
            "line": (line.line or None) if line else None,
            "inlined": depth < len(frame.lines) - 1,
            "trust": frame.trust.label,
        }
