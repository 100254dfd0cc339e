"""Tests of the summary that a recording prints at its end."""

from __future__ import annotations

import ast
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyprof.cli.number_and_name_format import duration, many, percent
from pyprof.cli.record_run import Progress
from pyprof.cli.terminal_output import advice
from pyprof.cli.terminal_summary import brief, report
from pyprof.collectors.base import CollectorStats, PauseLog
from pyprof.model.loss_reason_texts import Note, make_note, problem
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.profile import Profile, ThreadInfo
from pyprof.model.summary import NOT_SAMPLED_LABEL, FunctionsMissing, Language, ModuleSummary, Shown, Stops, Summary
from pyprof.problem_counters import Problem
from tests.cli.support import PYPROF
from tests.exporters.profiles import Builder, code, marker
from tests.model.test_functions import web_server
from tests.support import PROGRAMS, build

pytestmark = [pytest.mark.live, pytest.mark.system]

NO_SYMBOLS = Problem("no symbols: only exported names", "apt-get install a-dbg", "exported_names_only")
SUMMARY = Summary(
    samples=1000,
    threads=7,
    duration_s=10.0,
    rate_wanted=99,
    rate_reached=98.7,
    errors={
        "samples_lost": 12,
        "thread_blocked_before_stop": 30,
    },
    ends={"root": 900, "no_rule": 100},
    stops=Stops(900, 21.0, 60.0, 140.0, 0.0031),
    modules=(
        ModuleSummary(
            "/lib/a.so",
            "",
            10,
            (NO_SYMBOLS,),
            40,
        ),
        ModuleSummary("/lib/b.so", "", 10, (Problem("broken DWARF: at 0x10"),), 0),
        ModuleSummary("/lib/c.so", "", 10),
    ),
    notes=(make_note("by_stops", why="it runs other code."),),
    shown=Shown("cpu", "nanoseconds", 100, {"root": 60, "no_rule": 40}),
)

BY_EVENTS = (make_note("by_events", event="cpu-clock"),)
PYTHON = FunctionsMissing("Python", (1,), 30, "--collector ptrace")


def profile(**more: object) -> Profile:
    builder = Builder()
    for at in range(7):
        builder.sample(builder.node([code("_start"), code("main"), code(f"function_{at}")]), cpu_ns=10 + at)
    return builder.build(summary=replace(SUMMARY, **more), duration_ns=10_000_000_000)  # type: ignore[arg-type]


def text(found: Profile, verbose: bool = False, page: bool = True) -> str:
    lines = report(found, 80, page, verbose)
    assert all(len(line) <= 80 for line in lines), lines
    return "\n".join(lines)


def running_text(found: Profile, **options: bool) -> str:
    """Return the summary as one line."""
    return " ".join(text(found, **options).split())


def test_where_the_time_went_comes_first_then_how_good_then_what_is_missing() -> None:
    said = text(profile())
    order = [
        "of processor time in 10.0 s",
        "in the function itself",
        "with what it calls",
        "  how ",
        "  quality ",
        "  missing ",
    ]
    places = [said.find(part) for part in order]
    assert -1 not in places
    assert places == sorted(places)
    own = said[places[1] : places[2]].splitlines()[1:6]
    assert [line.split()[2] for line in own] == [f"function_{at}" for at in (6, 5, 4, 3, 2)]
    assert own[0].split() == ["17.6", "%", "function_6", "server"]
    totals = [line.split()[2] for line in said[places[2] :].splitlines()[1:6]]
    assert totals == [f"function_{at}" for at in (6, 5, 4, 3, 2)], "main, in which all is, says nothing"


def test_locks_stand_before_the_functions_of_who_had_them() -> None:
    gil = replace(marker("[GIL]"), mark=Mark(MarkKind.LOCK, name="GIL"))
    builder = Builder()
    builder.sample(builder.node([gil, code("release")]))
    lines = text(replace(builder.build(), summary=SUMMARY)).splitlines()
    (at,) = (at for at, line in enumerate(lines) if line.startswith("     lock  waited for"))
    assert lines[at + 1].split() == ["100", "%", "[GIL]"]
    assert at < next(at for at, line in enumerate(lines) if "in the function itself" in line)


def test_processes_are_told_apart_by_what_they_compile_and_cannot_forge_a_line() -> None:
    names = ["cc1 src/parse.c", "cc1 src/\x1b[2Jlex.c\n", "as", "as", "make"]
    builder = Builder(threads=[ThreadInfo(10 + at, 10 + at, "x", name) for at, name in enumerate(names)])
    for thread, count in enumerate((40, 30, 10, 15, 5)):
        for _ in range(count):
            builder.sample(builder.node([code("work")]), thread)
    said = text(replace(builder.build(), summary=SUMMARY))
    table = said[said.find("process  with") : said.find("  how ")].splitlines()[1:4]
    assert [" ".join(row.split()) for row in table] == [
        "40.0 % cc1 src/parse.c pid 10",
        r"30.0 % cc1 src/\x1b[2Jlex.c\n pid 11",
        "25.0 % as 2 processes",
    ]
    assert "with all its threads" not in text(profile()), "one process"


@pytest.mark.parametrize(("kind", "heading"), [("offcpu", "wait"), ("lock", "wait"), ("cpu", "native")])
def test_waits_below_an_interpreter_are_not_called_native_functions(kind: str, heading: str) -> None:
    shown = replace(SUMMARY.shown, type=kind)
    found = replace(web_server(), summary=replace(SUMMARY, shown=shown))
    labels = [line.split()[0] for line in text(found).splitlines() if line[2:10].strip()[:1].isalpha()]
    assert [label for label in labels if label in ("wait", "native")] == [heading]


def test_few_samples_are_counted_although_their_times_differ() -> None:
    """Check that a sample counts as one whatever its share of the kernel's time is, and unsampled time counts none."""
    builder = Builder([ThreadInfo(10, 10, "make", "make"), ThreadInfo(11, 11, "cc1", "cc1")])
    for name, cpu_ns in (("parse", 900), ("lex", 1), ("print", 1)):
        builder.sample(builder.node([code(name)]), cpu_ns=cpu_ns)
    for _ in range(64):
        builder.sample(builder.node([marker("[not sampled]")]), 1, cpu_ns=1000)
    shown = Shown("cpu", "nanoseconds", 64_902, {"root": 902, NOT_SAMPLED_LABEL: 64_000})
    said = text(replace(builder.build(), summary=replace(SUMMARY, samples=3, shown=shown)))
    rows = [line.split() for line in said[said.find("     self") : said.find("  how ")].splitlines() if line]
    heads = [at for at, row in enumerate(rows) if row[0] in ("self", "total", "process")]
    own, total, processes = (rows[at + 1 : end] for at, end in zip(heads, [*heads[1:], None], strict=True))
    assert sorted(row[:2] for row in own[:3]) == [["1", "lex"], ["1", "parse"], ["1", "print"]]
    assert own[3][-2:] == ["[not", "sampled]"]
    assert len(own) == 4
    assert sorted(row[:2] for row in total) == [["1", "lex"], ["1", "parse"], ["1", "print"]]
    assert [row[1:3] for row in processes] == [["µs", "cc1"], ["ns", "make"]]


def test_few_samples_are_counted_and_the_command_for_more_is_named() -> None:
    found = profile(samples=7)
    said = text(replace(found, period_ns=5))
    rows = said[said.find("in the function itself") : said.find("  how ")].splitlines()
    assert [row.split()[0] for row in rows[1:6]] == ["1"] * 5, "the samples share the kernel's time"
    assert not any("%" in row for row in rows)
    assert "7 samples: too few for percentages. For more: pyprof record -r 999 -d 15 …" in running_text(found)
    assert "too few" not in text(profile(samples=100))
    assert "too few" not in text(profile(samples=7, shown=replace(SUMMARY.shown, type="offcpu"))), "waits are exact"


def test_longer_recording_is_advised_where_the_rate_was_not_reached() -> None:
    found = profile(samples=7)
    late = replace(found.summary, rate_wanted=99.0, rate_reached=20.0, duration_s=1.5)
    assert "7 samples: too few for percentages. For more: pyprof record -d 23 …" in running_text(
        replace(found, summary=late)
    )


def test_many_processes_without_python_functions_are_not_all_named() -> None:
    assert "4 processes: -p PID --collector ptrace has them" in replace(PYTHON, pids=(1, 2, 3, 4)).problem.text


def test_time_without_samples_is_no_sample() -> None:
    found = profile(samples=7, shown=replace(SUMMARY.shown, ends={"root": 91, NOT_SAMPLED_LABEL: 91}))
    found = replace(found, values=found.values * 2)
    said = text(found)
    rows = said[said.find("in the function itself") : said.find("  how ")].splitlines()
    assert [row.split()[0] for row in rows[1:6]] == ["2"] * 5, "half of the time has all samples"


def test_command_for_more_samples_is_a_longer_recording_where_the_rate_is_high() -> None:
    assert "For more: pyprof record -d 20 …" in running_text(profile(samples=50, rate_wanted=999))
    assert "For more: pyprof record -r 199 …" in running_text(profile(samples=50))


@pytest.mark.parametrize("share", [0.005, 0.3])
def test_time_that_was_not_sampled_is_a_row_above_one_percent(share: float) -> None:
    builder = Builder()
    builder.sample(builder.node([code("work")]), cpu_ns=1000)
    missing = round(share * 1000)
    shown = Shown("cpu", "nanoseconds", 1000, {"root": 1000 - missing, "not_sampled": missing})
    said = text(builder.build(summary=replace(SUMMARY, shown=shown), duration_ns=10_000_000_000))
    table = " ".join(said[said.find("  self ") : said.find("  total ")].split())
    assert "self of 1.0 µs: in the function itself" in table
    assert ("30.0 % [not sampled]" in table) == (share > 0.01)


def test_processor_time_is_what_was_sampled_and_what_was_not_by_reason() -> None:
    said = running_text(profile(processor_s=0.5, not_sampled_s=0.3, lost_s=0.06, kernel_s=0.04, late_s=0.1))
    assert (
        "0.50 s of processor time: 0.20 s sampled, 0.30 s not (0.20 s ran too briefly, 0.06 s in lost records, 0.04 s "
        "in the kernel)"
    ) in said, "sampling times that were missed share the time of the samples"
    assert "samples lost" not in said, "records that were lost are told once, as time"
    assert "12 samples lost" in running_text(profile(processor_s=0.5))
    assert "of processor time:" not in running_text(profile(processor_s=0.5, not_sampled_s=0.004))


def test_quality_is_of_the_time_and_not_of_the_samples() -> None:
    assert "60.0 % of the time in whole stacks; 40.0 % cut short: no unwind rule" in running_text(profile())


def test_counters_in_our_own_words_are_told_only_where_asked_for() -> None:
    calm, everything = running_text(profile()), running_text(profile(), verbose=True)
    assert "blocked before the stop" not in calm
    assert "apt-get" not in calm
    lacks = "symbols of 1 module (40.0 % of the time), 1 module with other problems, 12 samples lost"
    assert f"missing {lacks}: see Summary in the page, or --verbose" in calm
    assert "Summary in the page" not in running_text(profile(), page=False)
    assert "30 × thread blocked before the stop" in everything
    assert "Nothing is missing." in everything
    assert "apt-get install a-dbg" in everything


def test_what_helps_against_several_things_is_said_once() -> None:
    slow = Problem("lines only in part: slow", "pyprof report --symbols /lib/a.so")
    none = Problem("no symbols: only exported names", "apt-get install a-dbg", "exported_names_only")
    module = ModuleSummary("/lib/a.so", "", 10, (slow, none, replace(slow, text="lines only in part: no time")))
    lines = text(profile(modules=(module,)), verbose=True).splitlines()
    assert [line.strip() for line in lines[lines.index("  /lib/a.so") + 1 :]][:5] == [
        *("lines only in part: slow", "lines only in part: no time", "pyprof report --symbols /lib/a.so"),
        *("no symbols: only exported names", "apt-get install a-dbg"),
    ]


def test_modules_without_symbols_in_which_no_time_was_spent_have_no_share() -> None:
    waits = ModuleSummary(
        "/lib/a.so",
        "",
        10,
        (NO_SYMBOLS,),
    )
    assert "missing symbols of 1 module: see Summary" in running_text(profile(modules=(waits,), errors={}))


def test_module_whose_names_were_not_read_in_time_is_one_without_symbols() -> None:
    late = ModuleSummary("/lib/a.so", "", 10, (problem("no_time_for_names", path="/lib/a.so"),), 25)
    said = running_text(profile(modules=(late,), errors={}))
    assert "missing symbols of 1 module (25.0 % of the time): see Summary" in said


def test_code_without_names_has_its_share_and_what_mends_it() -> None:
    made = ModuleSummary("[anon]", "", 10, (problem("code_without_names", command="node --perf-basic-prof …"),), 25)
    said = running_text(profile(modules=(made,), errors={}))
    assert "missing names of code made at run time (25.0 % of the time; node --perf-basic-prof …): see Summary" in said


def test_where_code_made_at_run_time_cuts_stacks_it_says_what_guesses_the_rest() -> None:
    made = ModuleSummary("[anon]", "", 10, (problem("code_without_names", command="node --perf-basic-prof …"),), 25)
    hint = "cut short: no unwind rule; --scan guesses what is outside of code made at run time"
    assert hint in running_text(profile(modules=(made,)))
    assert "--scan" not in running_text(profile(modules=()))
    assert "--scan" not in running_text(profile(modules=(made,), trust={"scan": 4}))
    whole = Shown("cpu", "nanoseconds", 100, {"root": 96, "no_rule": 4})
    assert "--scan" not in running_text(profile(modules=(made,), shown=whole))


def test_missing_python_functions_are_said_before_anything_else() -> None:
    said = text(
        profile(
            functions_missing=(replace(PYTHON, pids=(1, 2)),),
            shown=Shown("cpu", "nanoseconds", 100, {"no_python": 100}),
        )
    )
    assert said.startswith(
        "pyprof: Python functions are missing in 2 processes: -p 1 -p 2 --collector\n  ptrace has them\n"
    )
    assert "0 % of the time in whole stacks; 100 % without Python functions" in said
    assert "without -k" in replace(PYTHON, kernel=True).problem.text
    assert "missing in" not in text(profile())


def test_few_stacks_without_python_functions_are_part_of_the_quality_only() -> None:
    few = Shown("cpu", "nanoseconds", 1000, {"root": 990, "no_python": 10})
    said = text(profile(functions_missing=(replace(PYTHON, value=10),), shown=few))
    assert "missing in" not in said
    assert "1.0 % without Python functions" in said


def test_missing_functions_are_not_said_first_where_stops_read_them_already() -> None:
    shown = Shown("cpu", "nanoseconds", 100, {"root": 60, "no_python": 40})
    said = running_text(profile(functions_missing=(PYTHON,), shown=shown, stops=Stops(1000, 1.0, 1.0, 1.0, 0.1)))
    assert "missing in" not in said
    assert "60.0 % of the time in whole stacks; 40.0 % without Python functions" in said


def test_stacks_of_a_runtime_that_is_not_read_are_whole_native_ones() -> None:
    php, python = Language("PHP", ("execute_ex",), ""), Language("Python", ("_PyEval",), "--collector ptrace")
    all_of_it = Shown("cpu", "nanoseconds", 100, {"no_php": 100})
    said = running_text(profile(shown=all_of_it, languages=(php, python)))
    assert "100 % of the native stacks are whole; PHP functions are not shown missing" in said
    assert brief(profile(shown=all_of_it, languages=(php,))).endswith("100 % in whole native stacks")
    part = Shown("cpu", "nanoseconds", 100, {"root": 50, "no_php": 30, "no_python": 15, "no_rule": 5})
    said = running_text(profile(shown=part, languages=(php, python)))
    assert "80.0 % of the native stacks are whole; PHP functions are not shown (30.0 % of the time);" in said
    assert "15.0 % without Python functions; 5.0 % cut short: no unwind rule" in said


def test_stops_beside_perf_events_are_said_to_be_so() -> None:
    how = profile(samples=200, stops=Stops(150, 40.0, 80.0, 90.0, 0.01), notes=BY_EVENTS)
    assert "75.0 % by short stops, the others by perf_events (cpu-clock); 150 stops of 40 µs" in running_text(how)
    all_by_stops = profile(samples=150, stops=Stops(151, 40.0, 80.0, 90.0, 0.01), notes=BY_EVENTS)
    assert "by short stops; 151 stops" in running_text(all_by_stops)
    assert "perf_events" not in running_text(all_by_stops)


@pytest.mark.parametrize("before", [(), (*BY_EVENTS, make_note("never_stopped"))])
def test_why_nothing_was_kept_is_told(before: tuple[Note, ...]) -> None:
    said = running_text(profile(samples=0, notes=(*before, make_note("no_lock"))))
    assert said.count("note The interpreter is free-threaded: it has no GIL") == 1
    assert "Sampled by" not in said
    assert "stopped" not in said


def test_note_that_nothing_was_stopped_ends_the_line_on_samples() -> None:
    notes = (*BY_EVENTS, make_note("never_stopped"), make_note("kernel_not_sampled"))
    said = running_text(profile(notes=notes, stops=Stops()))
    assert said.count("by perf_events (cpu-clock): the target was never stopped") == said.count("stopped") == 1
    assert "note Time in the kernel has no samples" in said


def test_one_is_singular() -> None:
    said = running_text(profile(samples=1, threads=1, stops=Stops(1, 21.0, 21.0, 21.0, 0.1)))
    assert "1 sample of 1 thread" in said
    assert "1 stop of" in said
    assert (many(1, "sample"), many(0, "sample"), many(1234, "sample")) == ("1 sample", "0 samples", "1,234 samples")


def test_rate_is_told_where_it_was_not_reached() -> None:
    assert "a second" not in running_text(profile())
    assert "50.2 a second instead of 99" in running_text(profile(rate_reached=50.2))


def test_later_windows_have_a_line_each() -> None:
    assert brief(profile()).endswith("1,000 samples, 60.0 % in whole stacks")


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(0, 0, "0 %"), (0, 5, "0 %"), (5, 5, "100 %"), (9999, 10000, "99.9 %"), (1, 10**9, "<0.1 %"), (7, 5, "100 %"),
     (-3, 5, "0 %"), (1, 3, "33.3 %")],
)  # fmt: skip
def test_percentages_are_never_beyond_0_and_100_nor_rounded_to_them(part: int, whole: int, said: str) -> None:
    assert percent(part, whole) == said


def test_durations_have_a_fitting_unit() -> None:
    assert [duration(ns) for ns in (0, 999, 312e6, 9.84e9, 1.5e12)] == ["0 ns", "999 ns", "312 ms", "9.8 s", "1,500 s"]
    assert [duration(ns) for ns in (999.4e6, 999.6e6, 999_700)] == ["999 ms", "1.0 s", "1.0 ms"]


@pytest.mark.parametrize(
    ("hint", "for_root"),
    [
        ("sudo pyprof …", ""),
        ("sudo sysctl kernel.perf_event_paranoid=0, or: sudo pyprof …", "sysctl kernel.perf_event_paranoid=0"),
        ("sudo pyprof …, or once: sudo setcap cap_sys_ptrace+ep /usr/bin/python3",
         "setcap cap_sys_ptrace+ep /usr/bin/python3"),
        ("sudo pyprof …, in a container: docker run --cap-add=PERFMON …", "docker run --cap-add=PERFMON …"),
        ("sudo pyprof …, where children live only for milliseconds", ""),
        ("kill -CONT 12", "kill -CONT 12"),
    ],
)  # fmt: skip
def test_root_is_not_told_to_use_sudo(hint: str, for_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert advice(hint) == for_root
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert advice(hint) == hint


def test_every_advice_of_the_code_is_known_to_be_without_sudo_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    advised = [
        node.value
        for folder in ("profiler", "collectors")
        for path in (PROGRAMS.parent.parent / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "sudo" in node.value
        if path.name not in ("record.py", "terminal_output.py")  # the manual, and the code under test
    ]
    assert len(advised) > 5
    advices = [advice(text) for text in advised]
    assert [
        text for text in advices if "sudo " in text or text.startswith((",", " ")) or text.endswith((":", ","))
    ] == []


def _stats(stops: int = 0) -> CollectorStats:
    log = PauseLog()
    for _ in range(stops):
        log.add_pause(21_000)
    return CollectorStats(0, log.snapshot(), 0, 0, 0, ())


def test_progress_shows_the_remaining_time_within_the_width() -> None:
    line = Progress("python3 (1234)", False, 30.0).line(12.4, _stats(3), 1234, 79)
    assert line == "python3 (1234)  12 s, 18 s left  1,234 samples  stops of 21 µs"
    assert "Ctrl-C to finish" in Progress("python3 (1234)", False).line(12.4, _stats(), 1, 79)
    for width in range(30, 120):
        line = Progress("a-rather-long-process-name " * 4, False, 30.0).line(12.4, _stats(3), 10**9, width)
        assert len(line) <= width
        assert "18 s left" in line


def _on_terminal(
    *arguments: str,
    columns: int,
    apart: bool = False,
    then: tuple[str, Callable[[], object]] | None = None,
    codes: tuple[int, ...] = (0,),
) -> str:
    """Run pyprof on a pseudoterminal and return what it displays.

    Args:
        arguments: Arguments of pyprof.
        columns: Width of the terminal.
        apart: Whether standard output goes elsewhere.
        then: A pattern, and a function to call once when the pattern appears.
        codes: The exit codes that are expected.
    """
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    done = subprocess.Popen(
        [*PYPROF, *arguments], stdout=subprocess.DEVNULL if apart else follower, stderr=follower, env=environment
    )
    os.close(follower)
    seen, deadline = b"", time.monotonic() + 60
    try:
        poll = select.poll()
        poll.register(leader, select.POLLIN)
        while time.monotonic() < deadline and poll.poll(60_000):
            part = os.read(leader, 1 << 16)
            if not part:
                break
            seen += part
            if then is not None and re.search(then[0], seen.decode(errors="replace")):
                then[1]()
                then = None
    except OSError:  # the child has closed its end
        pass
    finally:
        os.close(leader)
        assert done.wait(60) in codes, seen
    return seen.decode()


def _shown(seen: str) -> list[str]:
    """Split terminal output at newlines and carriage returns into the lines that it displays."""
    return [line for line in re.split(r"[\r\n]+", seen.replace("\x1b[K", "")) if line]


@pytest.fixture(scope="module")
def spinning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run a C program that spends all time in spin(), and yield its pid."""
    program = build(PROGRAMS / "c_spin.c", tmp_path_factory.mktemp("spin") / "spinner", "-pthread")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def test_terminal_of_80_columns_holds_every_line(spinning: int, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    for seconds in ("1", "3", "9"):  # on a busy machine a second has too few samples for percentages
        command = ("record", "-r", "499", "-p", str(spinning), "-d", seconds, "-o", str(out))
        lines = _shown(_on_terminal(*command, columns=80, codes=(0, 1)))
        if "too few for percentages" not in " ".join(" ".join(lines).split()):
            break
    assert all(len(line) <= 80 or str(out) in line for line in lines), lines
    assert any(re.match(r"spinner \(\d+\)  \d+ s, \d+ s left  [\d,]+ samples?", line) for line in lines), lines
    first = next(at for at, line in enumerate(lines) if re.search(r"of processor time in [\d.]+ m?s$", line))
    assert lines[first + 2].split() == ["100", "%", "spin", "spinner"]
    assert lines[first + 4].split() == ["100", "%", "spin", "spinner"]
    assert "100 % of the time in whole stacks" in " ".join(lines)
    assert lines[-1].endswith(f"wrote {out}")


def test_quiet_says_nothing_on_a_terminal(spinning: int, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    for seconds in ("0.3", "3", "27"):  # without samples, on a busy machine, it writes no page and says why
        command = ("record", "-q", "-p", str(spinning), "-d", seconds, "-o", str(out))
        said = _on_terminal(*command, columns=80, codes=(0, 1))
        if out.exists():
            break
    assert said == ""
    assert out.stat().st_size


@pytest.mark.parametrize("apart", [False, True])
def test_command_has_its_terminal_for_itself(apart: bool, tmp_path: Path) -> None:
    """Check that progress does not overwrite the command's output unless that goes elsewhere."""
    out, fifo = tmp_path / "a.html", tmp_path / "fifo"
    os.mkfifo(fifo)
    end = os.open(fifo, os.O_RDWR)
    command = ("sh", "-c", f"printf 'name? '; read line < {fifo}")
    until = r"waiting for it to end, \d s" if apart else r"sh is still running; waiting for it to end"
    try:
        seen = _on_terminal(
            *("record", "-d", "1.5", "-o", str(out), "--", *command),
            columns=80,
            apart=apart,
            then=(until, lambda: os.write(end, b"\n")),
        )
    finally:
        os.close(end)
    lines = _shown(seen)
    assert any(re.match(r"sh \(\d+\)  \d s, \d s left", line) for line in lines) == apart, lines
    assert any(re.match(r"sh \(\d+\)  waiting for it to end, \d s", line) for line in lines) == apart, lines
    assert any("sh is still running; waiting for it to end (Ctrl-C ends it)" in line for line in lines), lines
    if not apart:
        assert any(re.search(r"pyprof: recording sh \(\d+\), 1.5 s; Ctrl-C to finish", line) for line in lines), lines
        assert "\x1b[K" not in seen
        assert "name? " in seen
