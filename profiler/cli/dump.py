"""`pyprof dump`: the stacks of all threads, now."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal
from pyprof.cli.arguments import bytes_size, positive_int, source_list
from pyprof.options import DEFAULT_MAX_DEPTH, DEFAULT_SOURCES, DEFAULT_STACK_SIZE, CollectOptions, UnwindOptions

if TYPE_CHECKING:
    from pyprof.model.profile import Frame, Profile, ThreadInfo
    from pyprof.model.walk import StackEnd

DESCRIPTION = """\
Print the stacks of all threads of a process as they are now: state, name, and for each
frame how it was found. Sleeping threads are read without stopping them.
"""

EPILOG = """\
The last column says how each frame was found: context (the innermost: the kernel's registers),
sframe, eh_frame, debug_frame (unwind tables), fp (frame pointer), lr (link register),
sigreturn (the kernel's signal frame), inlined (DWARF: in the function below it).

exit status:
  0 all stacks whole, 3 some cut short, 1 error, 2 wrong usage.

examples:
  pyprof dump -p 1234
  pyprof dump -p 1234 --json | jq '.threads[] | {tid, state, top: .frames[0].function}'
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "dump",
        help="print the stacks of all threads now",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-p", "--pid", type=positive_int, metavar="PID", required=True, help="the process")
    parser.add_argument("--json", action="store_true", help="as JSON, innermost frame first; a stable form")
    parser.add_argument("--full-paths", action="store_true", help="modules by their path instead of their name")
    parser.add_argument("--unwind", type=source_list, default=DEFAULT_SOURCES, metavar="LIST", help="see record")
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


def run(arguments: argparse.Namespace) -> int:
    import orjson

    from pyprof.collectors import attach, procfs
    from pyprof.collectors.ptrace import PtraceCollector
    from pyprof.diagnostics import Diagnostics
    from pyprof.model.arch import X86_64
    from pyprof.model.walk import StackEnd
    from pyprof.session.session import Session

    pid: int = arguments.pid
    attach.check_target(pid)
    states = {tid: procfs.state(pid, tid) for tid in procfs.tasks(pid)}
    exe = procfs.exe(pid)
    collect = CollectOptions(rate_hz=500, idle=True, stack_size=arguments.stack_size, flush_s=0)
    diagnostics = Diagnostics()
    session = Session(
        PtraceCollector(pid, collect, diagnostics),
        UnwindOptions(sources=arguments.unwind, max_depth=arguments.max_depth),
        diagnostics,
    )
    window = session.snapshot(lambda: set(tasks(pid)))
    profile = session.profile(window, exe, collect.rate_hz, idle=True)
    threads = [*thread_dumps(profile, states), *unseen(pid, profile, states)]
    if arguments.json:
        terminal.json(document(pid, exe, X86_64.name, threads, profile), orjson.OPT_INDENT_2)
    else:
        terminal.line(f"process {pid} {exe} ({X86_64.name})")
        for thread in threads:
            for text in text_lines(thread, profile, arguments.full_paths):
                terminal.line(text)
        for key, count in profile.summary.errors.items():
            terminal.complain(f"{key}: {count}")
    return 0 if threads and all(t.end == StackEnd.ROOT for t in threads) else 3


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
    yield f'thread {thread.info.tid} "{thread.info.name}" {thread.state}'
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


def document(pid: int, exe: str, arch: str, threads: list[ThreadDump], profile: Profile) -> dict[str, Any]:
    """The stable form of --json."""
    return {
        "pid": pid,
        "exe": exe,
        "arch": arch,
        "threads": [
            {
                "tid": t.info.tid,
                "name": t.info.name,
                "state": t.state,
                "end": t.end.label,
                "frames": [entry for frame in t.frames for entry in frame_json(frame, profile)],
            }
            for t in threads
        ],
    }


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
