"""`pyprof doctor`: find out what of pyprof works on this machine and on a process, without attaching to it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyprof.cli import terminal_output
from pyprof.cli.arguments import add_sandbox, positive_int
from pyprof.cli.terminal_output import HelpFormatter
from pyprof.errors import NoSuchProcess

if TYPE_CHECKING:
    from pyprof.collectors.sampling_source_plan import PlanFacts
    from pyprof.problem_counters import Finding
    from pyprof.tools.process_module_survey import ModuleSurvey, RunTimeSurvey

DESCRIPTION = """\
Check what will work before a recording: the kernel's settings, pyprof's capabilities,
seccomp and namespaces; for a PID also each module with its unwind sections, symbol
sources, build-id and use of frame pointers. Each problem comes with the command that fixes
it. Nothing is stopped and nothing is changed.
"""

EPILOG = """\
exit status:
  0 recording will work, 1 something prevents it, 2 wrong usage.
"""


def add(commands: argparse._SubParsersAction[Any]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check what will work, before a recording",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
    )
    parser.add_argument("pid", nargs="?", type=positive_int, metavar="PID", help="process to check")
    add_sandbox(parser, "check as pyprof record --sandbox would: ")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from pyprof.collectors.targets import attach_checks
    from pyprof.options import is_confined

    print("this machine")
    bad = show([*attach_checks.machine_findings(), check_native_walker()])
    if not bad and not arguments.pid:
        show_machine_plans(show_facts(0))
    if arguments.pid:
        print()
        terminal_output.line(f"process {arguments.pid}: {describe(arguments.pid)}")
        try:
            bad |= examine(arguments.pid, is_confined(arguments.sandbox))
        except ProcessLookupError:
            raise NoSuchProcess(f"process {arguments.pid} has ended meanwhile", "ps -e lists the processes") from None
    return int(bad)


def check_native_walker() -> Finding:
    """Return a finding that says whether native code unwinds the stacks on this machine."""
    from pyprof.problem_counters import Finding
    from pyprof.unwind.native_unwinder import describe_problem

    problem = describe_problem()
    if problem:
        return Finding(False, f"stacks are walked in Python, which is slower: {problem}")
    return Finding(True, "stacks are walked by native code")


def examine(pid: int, sandbox: bool) -> bool:
    """Print the findings for and against sampling a process. Return True if a finding prevents sampling."""
    from pyprof.collectors.targets import attach_checks

    findings = attach_checks.target_findings(pid)
    bad = show(findings)
    if any(finding.fatal for finding in findings):
        return bad
    return bad | look_into(pid, sandbox)


def look_into(pid: int, sandbox: bool) -> bool:
    """Print what a worker process finds in the files and the memory of a process. Return True if a module can be
    neither unwound nor read.

    The worker parses the files, because they are foreign.
    """
    from pyprof.collectors.combined.planner import Planner, describe_plans
    from pyprof.collectors.linux import procfs
    from pyprof.lazy_dataclasses import replace
    from pyprof.model.address_space import ProgramImage
    from pyprof.model.loss_reason_texts import counted, counter_title
    from pyprof.options import CollectOptions
    from pyprof.problem_counters import Diagnostics
    from pyprof.session.pipeline.interpreter_readers import Runtimes
    from pyprof.session.worker.worker_client import Examiner
    from pyprof.session.worker.worker_process import forked
    from pyprof.tools.process_module_survey import ProcessSurvey, SurveyOf

    diagnostics, facts = Diagnostics(), show_facts(pid)
    with Examiner(forked, sandbox) as examiner:
        runtimes = Runtimes(examiner.symbols(diagnostics), diagnostics)
        show(list(runtimes.describe(pid)))
        process = Planner(facts, CollectOptions(), find_interpreter=runtimes.needs_stops).inspect(pid)
        show(list(describe_plans(facts, {"this process": process})))
        space = replace(procfs.read_address_space(pid, space_id=1, generation=0), image=ProgramImage())
        found = examiner.one(SurveyOf(space), ProcessSurvey)
    bad = show_modules(found.modules)
    show_code(found.code)
    for key, number in sorted(found.tolerated.items()):
        reason = counted(key)
        terminal_output.line(f"  -   {counter_title(key)} ({number})")
        if reason and reason.hint:
            terminal_output.line(f"        {reason.hint}")
    return bad


def describe(pid: int) -> str:
    """Return the user, the start time, the memory and the command line of a process."""
    import time

    import psutil

    try:
        known = psutil.Process(pid).as_dict(("username", "create_time", "memory_info", "cmdline"))
    except psutil.Error:
        return "not there"
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(known["create_time"]))
    memory = f"{known['memory_info'].rss >> 20} MB, " if known["memory_info"] else ""
    command = " ".join(known["cmdline"] or ())
    return f"of {known['username']}, since {started}, {memory}{command[:200] or 'no command line'}"


def show(findings: list[Finding]) -> bool:
    """Print findings of `pyprof doctor`. Return True if one of them prevents pyprof from working."""
    for finding in findings:
        terminal_output.line(f"  {'ok ' if finding.ok else 'NO ' if finding.fatal else '-  '} {finding.text}")
        if hint := terminal_output.advice(finding.hint):
            terminal_output.line(f"        {hint}")
    return any(finding.fatal for finding in findings)


def show_facts(pid: int) -> PlanFacts:
    """Print and return the facts that decide from which source the samples of a process come. Pid 0 means any
    process.
    """
    from pyprof.collectors.combined.planner import check_stops, collect_facts, describe_facts
    from pyprof.options import CollectOptions

    options = CollectOptions()
    facts = check_stops(collect_facts((pid,), options), (pid,))
    show(list(describe_facts(facts, options)))
    return facts


def show_machine_plans(facts: PlanFacts) -> None:
    """Print which sources of samples pyprof would choose on this machine."""
    from pyprof.collectors.combined.planner import describe_plans
    from pyprof.collectors.sampling_source_plan import ProcessFacts

    processes = {
        "a native program": ProcessFacts(),
        "a program with an interpreter": ProcessFacts(interpreter="it has one"),
    }
    show(list(describe_plans(facts, processes)))


def show_modules(modules: Sequence[ModuleSurvey]) -> bool:
    """Print the modules of a process; return True if a module with code can be neither unwound nor read."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("module", "unwind", "frame pointers", "symbols", "build-id"):
        table.add_column(heading, no_wrap=True)
    for module in modules:
        cells = (
            terminal_output.printable(module.path),
            " ".join(module.unwind) or "none",
            module.frame_pointers,
            " ".join(module.symbols) or "none",
            module.build_id or "none",
        )
        table.add_row(*map(Text, cells))
    print()
    Console(highlight=False, width=500).print(table, end="")
    print()
    for module in modules:
        for problem in module.problems:
            terminal_output.line(f"  -   {module.path}: {problem.text}")
            if hint := terminal_output.advice(problem.hint):
                terminal_output.line(f"        {hint}")
    return any(module.unreadable for module in modules)


def show_code(found: RunTimeSurvey) -> None:
    """Print how the process describes code that no file contains, such as JIT code."""
    if not found.unfiled and not found.sources:
        return
    print()
    terminal_output.line(f"code made at run time: {found.unfiled >> 10} kB of executable memory without a file")
    for source in found.sources:
        rules = "names and unwind rules" if source.has_rules else "names"
        terminal_output.line(f"  ok  {source.module}: {source.count} pieces of code, {source.size} bytes, {rules}")
        for avma, size, name in source.pieces:
            terminal_output.line(f"        {avma:#018x} +{size:#x} {name}".rstrip())
        if source.count > len(source.pieces):
            terminal_output.line("        ...")
    if not found.sources:
        terminal_output.line("  -   nothing describes it: unwound by frame pointers only, without names")
        terminal_output.line("        docs/languages.md: node --perf-basic-prof, python3 -X perf, ...")
    for text in found.problems:
        terminal_output.line(f"  -   {text}")
