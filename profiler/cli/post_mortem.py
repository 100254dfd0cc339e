"""Output of `pyprof dump` for a core file or a crash dump: threads, why the process died, registers."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal_output
from pyprof.cli.argument_types import unwind_options
from pyprof.cli.dump_interpreter import Subject

if TYPE_CHECKING:
    from pyprof.model.profile import Profile
    from pyprof.objfile.minidump.crash_dump import DumpModule
    from pyprof.session.post_mortem import PostMortem, StatedCrash


def subject(arguments: argparse.Namespace) -> Subject:
    """Examine a core file, a minidump or a microdump for `pyprof dump`. A worker that has imported all it needs parses
    it.
    """
    from pyprof.options import DeadTarget
    from pyprof.session.post_mortem import examined
    from pyprof.session.worker.worker_process import forked

    target = DeadTarget(
        path=arguments.core or arguments.minidump,
        is_minidump=not arguments.core,
        exe=os.path.abspath(arguments.exe) if arguments.exe else "",
        sysroot=arguments.sysroot,
        stack_size=arguments.stack_size,
        unwind=unwind_options(arguments),
        registers=arguments.json or arguments.registers,
        sandbox=arguments.sandbox,
    )
    found = examined(target, forked)
    return of_core(target.path, found) if found.crash is None else of_minidump(target.path, found, found.crash)


def of_core(path: str, found: PostMortem) -> Subject:
    from pyprof.cli.crash_reason import crash_signal

    signal = crash_signal(found.signal)
    return Subject(
        found.pid,
        found.exe,
        found.arch,
        found.profile,
        found.threads,
        header=(f"core {path} of process {found.pid} {found.exe} ({found.arch})",),
        reason=f"killed by {signal.text}" if signal else "",
        facts={"signal": signal.to_json() if signal else None},
        registers=found.registers,
        post_mortem=True,
    )


def of_minidump(path: str, found: PostMortem, crash: StatedCrash) -> Subject:
    """Return the threads and the crash reason of a minidump or microdump for `pyprof dump`."""
    from pyprof.cli.crash_reason import crash_reason

    reason = crash_reason(crash.system, crash.exception)
    system = " ".join(word for word in (crash.system, crash.version) if word)
    facts = {
        "os": crash.system or None,
        "os_version": crash.version or None,
        "crash": reason.to_json() if reason else None,
        "modules": [stated(module) for module in crash.modules],
    }
    return Subject(
        found.pid,
        found.exe,
        found.arch,
        found.profile,
        found.threads,
        header=(f"dump {path} of process {found.pid} {found.exe} ({found.arch})", *((system,) if system else ())),
        reason=f"crashed: {reason.text}" if reason else "",
        facts=facts,
        registers=found.registers,
        post_mortem=True,
    )


def stated(module: DumpModule) -> dict[str, str | None]:
    return {
        "path": module.path,
        "start": f"{module.base:#x}",
        "end": f"{module.base + module.size:#x}",
        "debug_id": module.debug_id or None,
        "build_id": module.build_id or None,
    }


def complain(profile: Profile) -> None:
    """Print the errors that were tolerated and what modules lack, with each remedy once."""
    from pyprof.model.reason_table import DUMPS
    from pyprof.model.reasons import counted, counter_title

    said = set()
    for key, count in profile.summary.errors.items():
        reason = counted(key)
        remedy = reason.retry if reason in DUMPS and reason.retry not in said else ""
        terminal_output.complain(f"{counter_title(key)}: {count}", remedy)
        said.add(remedy)
    for module in profile.summary.modules:
        for problem in module.problems:
            remedy = "" if problem.remedy in said else problem.remedy
            terminal_output.complain(f"{module.path}: {problem.text}", remedy)
            said.add(remedy)


def lacks_files(profile: Profile) -> bool:
    """Return True if stacks may lack frames because not all files of their modules are known."""
    from pyprof.collectors.postmortem.core_modules import NO_PROGRAM, OTHER_PROGRAM
    from pyprof.objfile.loaded_images import DIFFERS, NO_SYMBOLS, NOT_COMPARED, NOT_FOUND

    missing = {DIFFERS, NOT_COMPARED, NOT_FOUND, NO_SYMBOLS, NO_PROGRAM, OTHER_PROGRAM}
    return not profile.summary.errors.keys().isdisjoint(missing)


def facts(subject: Subject) -> dict[str, Any]:
    """Return the additional JSON entries of a dumped process that has died."""
    problems = [
        {
            "module": module.path,
            "build_id": module.build_id or None,
            "reason": problem.reason,
            "text": problem.text,
            "remedy": problem.remedy,
        }
        for module in subject.profile.summary.modules
        for problem in module.problems
    ]
    return {**subject.facts, "problems": problems}
