"""`pyprof dump`: print the stacks of all threads of a live process or a core file, as text or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal_output
from pyprof.cli.arguments import (
    GDB_HELP,
    add_sandbox,
    bytes_size,
    positive_int,
    remote_options,
    source_list,
    unwind_options,
)
from pyprof.cli.terminal_output import HelpFormatter
from pyprof.lazy_dataclasses import dataclass, field
from pyprof.options import (
    DEFAULT_MAX_DEPTH,
    DEFAULT_SOURCES,
    DEFAULT_STACK_SIZE,
    FRAME_SOURCES,
    NATIVE_VIEWS,
    DumpOptions,
)

if TYPE_CHECKING:
    from pyprof.interpreters.base import Detected
    from pyprof.model.profile import Frame, Profile
    from pyprof.model.thread_stacks import FrameDetail, ThreadStack
    from pyprof.session.core_and_crash_dump_profile import Registers


@dataclass(frozen=True)
class Subject:
    """A dumped process, core file or crash dump.

    Attributes:
        threads: Threads in the order in which they are printed.
        header: First lines of the output, () for the usual line about a live process.
        reason: Why the process died, "" if it did not.
        facts: Additional entries for the JSON.
        registers: Registers of the frames for which they are known.
        unread: Interpreters whose functions are not in the stacks.
        post_mortem: True for a core file or crash dump, False for a live process.
    """

    pid: int
    exe: str
    arch: str
    profile: Profile
    threads: tuple[ThreadStack, ...]
    header: tuple[str, ...] = ()
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    registers: Registers = field(default_factory=dict)
    unread: tuple[Detected, ...] = ()
    post_mortem: bool = False


def interpreter_words(state: int, merge: str) -> Iterator[str]:
    """Yield words about a thread's state in its interpreter, such as "holds the GIL".

    Args:
        state: SampleState bits.
        merge: Sentence about interpreter frames that could not be matched to native frames, "" for none.
    """
    from pyprof.model.interpreter_frames import SampleState

    if state & SampleState.HOLDS_LOCK:
        yield "holds the GIL"
    if state & SampleState.COLLECTING:
        yield "collects garbage"
    if merge:
        yield merge


def interpreter_json(state: int, merge: str) -> dict[str, Any] | None:
    """Return what a thread's JSON entry says about its state in the interpreter; None if the thread does not belong to
    one.
    """
    from pyprof.model.interpreter_frames import SampleState

    if not state & SampleState.INTERPRETED:
        return None
    return {
        "gil": bool(state & SampleState.HOLDS_LOCK),
        "collecting": bool(state & SampleState.COLLECTING),
        "merge": merge or None,
    }


def _kind(detail: FrameDetail) -> str:
    return detail.language.lower() or "interpreted"


def interpreted_lines(frame: Frame, detail: FrameDetail) -> Iterator[str]:
    """Yield the text lines of an interpreter frame, in the columns of native frames: the frame, its source line, and
    its local variables.
    """
    line = frame.lines[0]
    source = f" at {line.file}:{line.line or '?'}" if line.file else ""
    yield f"{_kind(detail):<18}  {frame.title}{source}  [{frame.trust.label}]"
    if detail.source:
        yield f"{'':28}{detail.source}"
    for name, value in (detail.locals or {}).items():
        yield f"{'':30}{name} = {value}"


def add_detail(entry: dict[str, Any], detail: FrameDetail) -> None:
    """Add details of an interpreter frame, such as local variables, to the frame's JSON entry."""
    entry["kind"] = _kind(detail)
    entry["source"] = detail.source or None
    if detail.locals is not None:
        entry["locals"] = dict(detail.locals)


def interpreted_frame(frame: Frame) -> dict[str, Any]:
    """Return the JSON entry of an interpreter frame, which has the same keys as that of a native frame."""
    line = frame.lines[0]
    return {
        "kind": "interpreted",
        "pc": None,
        "module": None,
        "build_id": None,
        "rel": None,
        "function": frame.title,
        "offset": None,
        "file": line.file,
        "line": line.line or None,
        "inlined": False,
        "trust": frame.trust.label,
    }


_REGISTERS_A_LINE = 4

DESCRIPTION = """\
Print the stacks of all threads of a process as they are now: state, name, and for each
frame how it was found. Sleeping threads are read without stopping them. With --core and
--minidump: as they were when the process died, the thread that crashed first.
"""

_FOUND = fill(
    "The last column says how each frame was found. inlined: in the function below it, by DWARF; "
    + "; ".join(source.described for source in FRAME_SOURCES)
    + ". A guess is made only with --unwind default,scan.",
    width=92,
)
EPILOG = (
    _FOUND
    + """

exit status:
  0 all stacks complete, 3 some truncated (of a core or minidump also: files are missing), 1 error,
  2 wrong usage.

examples:
  pyprof dump -p 1234
  pyprof dump -p 1234 --json | jq '.threads[] | {tid, state, top: .frames[0].function}'
  pyprof dump --gdb board:2345 --sysroot /usr/arm-linux-gnueabihf
  pyprof dump --core core
  pyprof dump --core core.arm --exe ./server --sysroot /srv/board
  pyprof dump --minidump crash.dmp --symbols https://symbols.example.org/
"""
)


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "dump",
        help="print the stacks of all threads now",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("-p", "--pid", type=positive_int, metavar="PID", help="the process")
    target.add_argument("--gdb", metavar="HOST:PORT", help=GDB_HELP)
    target.add_argument("--core", metavar="CORE", help="a core file instead of a process")
    target.add_argument(
        "--minidump", metavar="FILE", help="a minidump, or a log with a microdump, instead of a process"
    )
    parser.add_argument(
        "--exe", metavar="FILE", default="", help="with --core, --minidump or --gdb: the program's file"
    )
    parser.add_argument(
        "--sysroot", metavar="DIR", default="", help="with --core, --minidump or --gdb: folder with the target's files"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, innermost frame first (a stable format)")
    parser.add_argument(
        "--registers",
        action="store_true",
        help="with --core or --minidump: print the registers of each frame, if known",
    )
    parser.add_argument("--full-paths", action="store_true", help="show modules by path instead of by name")
    parser.add_argument("--unwind", type=source_list, default=DEFAULT_SOURCES, metavar="LIST", help="see record")
    parser.add_argument("--scan", action="store_true", help="see record")
    parser.add_argument("--symbols", action="append", default=[], metavar="PATH|URL", help="see record")
    parser.add_argument("--max-depth", type=positive_int, default=DEFAULT_MAX_DEPTH, metavar="N", help="see record")
    parser.add_argument("--stack-size", type=bytes_size, default=DEFAULT_STACK_SIZE, metavar="BYTES", help="see record")
    parser.add_argument("--native", choices=NATIVE_VIEWS, default="extensions", help="see record")
    parser.add_argument("--async", dest="follow_tasks", action="store_true", help="see record")
    parser.add_argument(
        "--locals", action="store_true", help="print the local variables of Python frames, with limited size"
    )
    parser.add_argument(
        "--redact",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with --locals: hide values of variables whose names look secret (default)",
    )
    parser.add_argument(
        "--goroutines",
        action="store_true",
        help="with -p or --core: show the goroutines of a Go program that no thread runs, too",
    )
    add_sandbox(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyprof.cli import dump_core
    from pyprof.errors import UsageError

    if arguments.pid and (arguments.exe or arguments.sysroot):
        raise UsageError("--exe and --sysroot need --core, --minidump or --gdb", "pyprof dump --core CORE --exe FILE")
    if arguments.registers and not (arguments.core or arguments.minidump):
        raise UsageError("--registers needs --core or --minidump")
    if arguments.locals and not arguments.pid:
        raise UsageError("--locals needs a live process", "pyprof dump -p PID --locals")
    if arguments.goroutines and not (arguments.pid or arguments.core):
        raise UsageError("--goroutines needs a live process or a core file", "pyprof dump -p PID --goroutines")
    subject = subject_of(arguments)
    profile = subject.profile
    if arguments.json:
        import orjson

        terminal_output.json(document(subject), orjson.OPT_INDENT_2)
    else:
        for text in header_lines(subject):
            terminal_output.line(text)
        for thread in subject.threads:
            registers = subject.registers.get(thread.tid, []) if arguments.registers else []
            for text in text_lines(thread, profile, arguments.full_paths, registers):
                terminal_output.line(text)
    if subject.post_mortem:
        dump_core.complain(profile)
    elif not arguments.json:
        for key, count in profile.summary.errors.items():
            terminal_output.complain(f"{key}: {count}")
    whole = bool(subject.threads) and all(thread.whole for thread in subject.threads)
    return 0 if whole and not (subject.post_mortem and dump_core.lacks_files(profile)) else 3


def subject_of(arguments: argparse.Namespace) -> Subject:
    from pyprof.cli import dump_core
    from pyprof.session.process_priority import restore_priority

    if not (arguments.core or arguments.minidump):
        return of_live(arguments)
    restore_priority()  # no process waits, and a large file takes long
    return dump_core.subject(arguments)


def of_live(arguments: argparse.Namespace) -> Subject:
    """Return the stacks of a live process, or of a target behind a GDB stub, for `pyprof dump`."""
    unwind = unwind_options(arguments)
    options = DumpOptions(
        stack_size=arguments.stack_size,
        unwind=unwind.sources,
        symbols=unwind.symbols,
        max_depth=unwind.max_depth,
        native=arguments.native,
        follow_tasks=arguments.follow_tasks,
        sandbox=arguments.sandbox,
        locals=arguments.locals,
        redact=arguments.redact,
        goroutines=arguments.goroutines,
    )
    remote = remote_options(arguments)
    from pyprof.cli.signal_thread import listen
    from pyprof.session.worker.worker_process import exit_at_once, forked_early, freeze_loaded_objects

    with forked_early(options.confined) as start:
        listen(lambda number: exit_at_once(128 + number))

        from pyprof.session import thread_dump

        freeze_loaded_objects()
        if remote is not None:
            found = thread_dump.of_stub(remote, options, start)
        else:
            found = thread_dump.of_process(arguments.pid, options, start)
    return Subject(found.pid, found.exe, found.arch, found.profile, found.threads, unread=found.unread)


def header_lines(subject: Subject) -> Iterator[str]:
    yield from subject.header or (f"process {subject.pid} {subject.exe} ({subject.arch})",)
    if subject.reason:
        yield subject.reason
    for found in subject.unread:
        yield found.sentence


def text_lines(
    thread: ThreadStack,
    profile: Profile,
    full_paths: bool,
    registers: Sequence[Mapping[str, int]],
) -> Iterator[str]:
    from pyprof.model.profile import FrameKind
    from pyprof.model.thread_stacks import FrameDetail
    from pyprof.model.unwind_result import StackEnd

    yield ""
    name = f'"{thread.info.name}" ' if thread.info.name else ""
    words = ", ".join([thread.state, *interpreter_words(thread.known, thread.merge)])
    yield f"{thread.info.name} [{words}]" if thread.tid < 0 else f"thread {thread.info.tid} {name}{words}"
    number = 0
    detail = iter(thread.details)
    for nth, frame in enumerate(thread.frames):
        if frame.kind == FrameKind.INTERPRETER:
            head, *more = interpreted_lines(frame, next(detail, FrameDetail()))
            yield f"  #{number:<3} {head}"
            yield from more
            number += 1
            continue
        module = profile.modules[frame.module] if frame.module >= 0 else None
        place = (module.path if full_paths else module.name) if module else ""
        rows = frame.lines or (None,)
        for depth, line in enumerate(rows):
            inlined = depth < len(rows) - 1 or frame.kind == FrameKind.INLINE
            name = line.function if line else frame.title
            if line and not inlined:
                name += f"+{line.offset:#x}"
            source = f" at {line.file}:{line.line}" if line and line.file else ""
            found = "inlined" if inlined else frame.trust.label
            yield f"  #{number:<3} {frame.pc:#018x}  {name}{source}  {place}  [{found}]"
            number += 1
        known = list(registers[nth].items()) if nth < len(registers) else []
        for at in range(0, len(known), _REGISTERS_A_LINE):
            row = known[at : at + _REGISTERS_A_LINE]
            yield " " * 6 + "  ".join(f"{name:>4} {value:#018x}" for name, value in row)
    if thread.end != StackEnd.ROOT:
        yield f"  [cut short: {thread.end.words}]"


def document(subject: Subject) -> dict[str, Any]:
    """Return the JSON of a dump in the stable form of --json. Registers, problems and the crash are present only in
    dumps of a core file or crash dump.
    """
    from pyprof.cli import dump_core

    found: dict[str, Any] = {"pid": subject.pid, "exe": subject.exe, "arch": subject.arch}
    if subject.post_mortem:
        found |= dump_core.facts(subject)
    found["unread"] = [
        {"language": entry.language, "version": entry.version, "module": entry.module} for entry in subject.unread
    ]
    found["threads"] = [
        {
            "tid": t.info.tid,
            "name": t.info.name,
            "state": t.state,
            "end": t.end.label,
            "interpreter": interpreter_json(t.known, t.merge),
            "frames": list(frames_json(t, subject)),
        }
        for t in subject.threads
        if t.tid >= 0
    ]
    goroutines = [
        {"id": number, "state": t.state, "end": t.end.label, "frames": list(frames_json(t, subject))}
        for t in subject.threads
        if (number := t.goroutine) is not None
    ]
    return found | {"goroutines": goroutines} if goroutines else found


def frames_json(thread: ThreadStack, subject: Subject) -> Iterator[dict[str, Any]]:
    """Yield the JSON of a dumped thread's frames. Of several inlined functions in a frame, the entry of the function
    into which the others are inlined has the registers.
    """
    from pyprof.model.profile import FrameKind
    from pyprof.model.thread_stacks import FrameDetail

    registers = subject.registers.get(thread.info.tid, [])
    detail = iter(thread.details)
    for place, frame in enumerate(thread.frames):
        entries = list(frame_json(frame, subject.profile))
        if frame.kind == FrameKind.INTERPRETER:
            add_detail(entries[0], next(detail, FrameDetail()))
        if place < len(registers):
            entries[-1]["registers"] = {name: f"{value:#x}" for name, value in registers[place].items()}
        yield from entries


def frame_json(frame: Frame, profile: Profile) -> Iterator[dict[str, Any]]:
    """Yield one JSON entry for each function of a frame. Functions that are inlined into another one come before it."""
    from pyprof.model.profile import FrameKind

    module = profile.modules[frame.module] if frame.module >= 0 else None
    for depth, line in enumerate(frame.lines or (None,)):
        inlined = depth < len(frame.lines) - 1 or frame.kind == FrameKind.INLINE
        if frame.kind == FrameKind.INTERPRETER:
            yield interpreted_frame(frame)
            continue
        yield {
            "kind": "inline" if inlined else "kernel" if frame.kind == FrameKind.KERNEL else "native",
            "pc": f"{frame.pc:#x}",
            "module": module.path if module else None,
            "build_id": (module.build_id or None) if module else None,
            "rel": f"{frame.rel:#x}",
            "function": line.function if line else None,
            "offset": line.offset if line else None,
            "file": line.file if line else None,
            "line": (line.line or None) if line else None,
            "inlined": inlined,
            "trust": frame.trust.label,
        }
