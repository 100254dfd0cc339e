"""What `pyprof dump` shows of a core file or a crash dump: threads, why the process died, registers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal
from pyprof.cli.arguments import unwind_options
from pyprof.cli.dump_subject import Registers, Subject

if TYPE_CHECKING:
    from pyprof.collectors.postmortem.saved_threads import SavedThreads
    from pyprof.model.arch import Arch
    from pyprof.model.profile import Profile
    from pyprof.model.threads import ThreadStack
    from pyprof.session.session import Session


def of_core(arguments: argparse.Namespace) -> Subject:
    """A core file."""
    from pyprof.cli.crash import crash_signal
    from pyprof.collectors.postmortem.core_collector import CoreFileCollector
    from pyprof.collectors.postmortem.minidump_collector import looks_like_dump
    from pyprof.diagnostics import Diagnostics
    from pyprof.errors import FormatError, PyprofError
    from pyprof.session.session import Session

    diagnostics = Diagnostics()
    path = arguments.core
    try:
        collector = CoreFileCollector(path, arguments.exe, arguments.sysroot, arguments.stack_size, diagnostics)
    except FormatError as error:
        if looks_like_dump(path):
            raise PyprofError(f"{path}: no core file", f"pyprof dump --minidump {path}") from error
        hint = "--core takes a core file: coredumpctl dump PID -o core"
        raise PyprofError(f"{path}: {error.message}", hint) from error
    session = Session(collector, unwind_options(arguments), diagnostics)
    profile = _profile(session, collector.exe)
    signal = crash_signal(collector.crashed)
    states = dict.fromkeys(collector.order, "stopped")
    if signal and collector.order:
        states[collector.order[0]] = "crashed"
    return Subject(
        collector.pid,
        collector.exe,
        collector.arch.name,
        profile,
        _threads(profile, states, collector.order),
        header=(f"core {arguments.core} of process {collector.pid} {collector.exe} ({collector.arch.name})",),
        reason=f"killed by {signal.text}" if signal else "",
        facts={"signal": signal.to_json() if signal else None},
        registers=_registers(session, collector.saved, collector.arch, arguments),
        post_mortem=True,
    )


def of_minidump(arguments: argparse.Namespace) -> Subject:
    """A minidump or a microdump."""
    from pyprof.cli.crash import crash_reason
    from pyprof.collectors.postmortem.minidump_collector import MinidumpCollector
    from pyprof.diagnostics import Diagnostics
    from pyprof.errors import FormatError, PyprofError
    from pyprof.session.session import Session

    diagnostics = Diagnostics()
    path = arguments.minidump
    try:
        collector = MinidumpCollector(path, arguments.exe, arguments.sysroot, arguments.stack_size, diagnostics)
    except FormatError as error:
        raise PyprofError(
            f"{path}: {error.problem}", "--minidump takes a minidump or the log with a microdump"
        ) from error
    session = Session(collector, unwind_options(arguments), diagnostics)
    profile = _profile(session, collector.exe)
    dump = collector.dump
    reason = crash_reason(dump.os, collector.crashed)
    system = " ".join(word for word in (dump.os, dump.version) if word)
    return Subject(
        collector.pid,
        collector.exe,
        collector.arch.name,
        profile,
        _threads(profile, collector.states, collector.order),
        header=(
            f"dump {path} of process {collector.pid} {collector.exe} ({collector.arch.name})",
            *((system,) if system else ()),
        ),
        reason=f"crashed: {reason.text}" if reason else "",
        facts={
            "os": dump.os or None,
            "os_version": dump.version or None,
            "crash": reason.to_json() if reason else None,
            "modules": [
                {
                    "path": module.path,
                    "start": f"{module.base:#x}",
                    "end": f"{module.base + module.size:#x}",
                    "debug_id": module.debug_id or None,
                    "build_id": module.build_id or None,
                }
                for module in dump.modules
            ],
        },
        registers=_registers(session, collector.saved, collector.arch, arguments),
        post_mortem=True,
    )


def _profile(session: Session, title: str) -> Profile:
    window = session.run(lambda: None)
    if session.failure is not None:
        raise session.failure
    return session.profile(window, title, 1.0, mode="wall")


def _threads(profile: Profile, states: Mapping[int, str], order: Sequence[int]) -> tuple[ThreadStack, ...]:
    from pyprof.model.threads import thread_stacks

    place = {tid: at for at, tid in enumerate(order)}
    return tuple(sorted(thread_stacks(profile, states), key=lambda thread: place.get(thread.tid, 0)))


def _registers(session: Session, saved: SavedThreads, arch: Arch, arguments: argparse.Namespace) -> Registers:
    """tid -> for each frame, innermost first, its registers by name; {} where nobody asks."""
    if not (arguments.json or arguments.registers):
        return {}
    found: Registers = {}
    for batch in saved.again():
        for tid, frames in zip(batch.tid.tolist(), session.unwinder.registers(batch), strict=True):
            found[tid] = [
                {name: value for name, value in zip(arch.registers, values, strict=True) if value is not None}
                for values in frames
            ]
    return found


def complain(profile: Profile) -> None:
    """What was tolerated, what modules lack and what mends it; each remedy once."""
    from pyprof.collectors.postmortem.core_modules import NO_PROGRAM, OTHER_PROGRAM
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


def lacks_files(profile: Profile) -> bool:
    """Stacks may miss frames: not all files of their modules are known."""
    from pyprof.collectors.postmortem.core_modules import NO_PROGRAM, OTHER_PROGRAM
    from pyprof.objfile.images import DIFFERS, NO_SYMBOLS, NOT_COMPARED, NOT_FOUND

    missing = {DIFFERS, NOT_COMPARED, NOT_FOUND, NO_SYMBOLS, NO_PROGRAM, OTHER_PROGRAM}
    return not profile.summary.errors.keys().isdisjoint(missing)


def facts(subject: Subject) -> dict[str, Any]:
    """What the JSON of a dead process says besides."""
    problems = [
        {"module": module.path, "build_id": module.build_id or None, "text": problem.text, "remedy": problem.remedy}
        for module in subject.profile.summary.modules
        for problem in module.problems
    ]
    return {**subject.facts, "problems": problems}
