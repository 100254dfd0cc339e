"""Tests that the table of reasons contains every counter of the code and every way in which stacks end."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from string import Formatter

import pytest

from pyprof.cli.terminal_output import refuse
from pyprof.collectors.bpf.ring_buffer_records import LossReason
from pyprof.collectors.combined.source_switching_collector import _CHANGES
from pyprof.errors import FormatError, NoSuchProcess, PyprofError
from pyprof.exporters.flamegraph import WORDS
from pyprof.fleet.agent.control_socket import ControlRefused
from pyprof.fleet.wire.push_response_verdicts import LATER, REFUSED
from pyprof.model.fleet_loss_reasons import ASKS
from pyprof.model.interpreter_frames import PARTIAL
from pyprof.model.loss_reason_texts import (
    COUNTERS,
    ENDS,
    PAGE,
    PLAN,
    REFUSALS,
    SENTENCES,
    Note,
    counted,
    counter_title,
    end_reason,
    lacking,
    make_cause,
    make_note,
    parse_note,
    problem,
    problem_counted,
    problem_of,
)
from pyprof.model.reason_type import Reason
from pyprof.model.summary import NOT_SAMPLED_LABEL, PARTLY_READ, Summary, lacks
from pyprof.model.unwind_result import StackEnd
from pyprof.problem_counters import Problem
from pyprof.session.worker.file_broker_client import FILES_NOT_OPENED
from pyprof.session.worker.sandbox import SHARED_USER, UNCONFINED
from pyprof.unwind.formats.cfi_sections import BROKEN_TABLE, NO_TABLE
from tests import syntax
from tests.test_layers import sources

ROOT = Path(__file__).parent.parent.parent
_TABLES = [
    *PARTIAL.values(),
    *LATER.values(),
    *REFUSED.values(),
    *(reason.counted for reason in LossReason if reason.counted),
    UNCONFINED,
    SHARED_USER,
    FILES_NOT_OPENED,
    NO_TABLE,
    BROKEN_TABLE,
]
"""Names that the code takes from separate tables."""


@cache
def names_counted() -> tuple[tuple[str, str], ...]:
    return tuple(_counted())


def _counted() -> Iterator[tuple[str, str]]:
    """Yield (place, name) of every counter in the code, with "x" for the values in an f-string."""
    for folder in ("profiler", "unwind", "collectors", "interpreters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = syntax.tree(path)
            constants = {
                target.id: node.value.value
                for node in tree.body
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
                for target in node.targets
                if isinstance(target, ast.Name) and isinstance(node.value.value, str)
            }
            for node in syntax.nodes(path):
                for part in _parts(_argument(node)):
                    text = constants.get(part.id, "") if isinstance(part, ast.Name) else _spelled(part)
                    if text:
                        yield f"{path.relative_to(ROOT)}:{part.lineno}", text


def _argument(node: ast.AST) -> ast.expr | None:
    """Return the name that a call of diagnostics.count() or oddities.append(), or an increment of a counter, refers
    to.
    """
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        owner = ast.unparse(node.func.value)
        counts = node.func.attr == "count" and owner.endswith("diagnostics")
        return node.args[0] if counts or (node.func.attr == "append" and owner.endswith("oddities")) else None
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        return (
            node.target.slice if ast.unparse(node.target.value).endswith(("oddities", "_tolerated", "errors")) else None
        )
    return None


def _parts(argument: ast.expr | None) -> list[ast.expr]:
    """Return both alternatives of a conditional expression."""
    if isinstance(argument, ast.IfExp):
        return [argument.body, argument.orelse]
    return [argument] if argument is not None else []


def _spelled(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return ""


def test_every_counter_of_the_code_has_its_sentence() -> None:
    found = [*names_counted(), *(("a table", text) for text in _TABLES)]
    assert len(found) > 100
    assert [(where, name) for where, name in found if counted(name) is None] == []
    details = {name.partition(":")[0] for _, name in found if ":" in name}
    assert details == {reason.name for reason in COUNTERS if "*" in reason.title}


def test_names_of_counters_are_identifiers_and_differ() -> None:
    names = [reason.name for reason in COUNTERS]
    assert [name for name in names if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name)] == []
    assert len(set(names)) == len(names)
    assert [reason.name for reason in COUNTERS if not reason.title] == []


def test_title_of_a_counter_has_its_detail() -> None:
    assert counter_title("samples_lost") == "sample lost: the ring was full"
    assert counter_title("unwind_table_broken:.eh_frame") == ".eh_frame: broken, not used"
    assert counter_title("unwind_table_broken:a:b") == "a:b: broken, not used"
    assert counter_title("of a later version") == "of a later version"


def test_every_sentence_is_of_a_counter_that_there_is() -> None:
    names = [name for _, name in names_counted()] + _TABLES
    used = {id(counted(name)) for name in names}
    assert [entry.name for entry in COUNTERS if id(entry) not in used] == []


def _with_arguments() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield (place, name, arguments) of every message with arguments and a constant name."""
    for folder in ("profiler", "unwind", "collectors", "interpreters", "exporters"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in syntax.nodes(path):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "format_message",
                    "make_cause",
                    "make_note",
                    "problem",
                ):
                    name = node.args[0] if node.args else None
                    if isinstance(name, ast.Constant) and isinstance(name.value, str):
                        arguments = frozenset(keyword.arg or "**" for keyword in node.keywords)
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", name.value, arguments


_CHOSEN = {
    reason: frozenset({"seconds", "spent_s", "percent"})
    for reason in ("too_short", "too_short_or_late", "records_lost", "kernel_time", "times_missed")
}
"""Rows that pipeline/unsampled_time.py selects through a separate table."""
_OF_ROUTER = dict.fromkeys(_CHANGES.values(), frozenset({"seconds"}))
"""Rows that collectors/combined/source_switching_collector.py selects by the rule that changed the source."""
_OF_PLAN: dict[str, frozenset[str]] = {
    **{reason.name: frozenset() for reason in PLAN},
    **{
        f"plan_{name}": frozenset({"why"})
        for name in ("interpreter_by_stops", "waits_by_stops", "unreadable", "events_refused", "stops_refused")
    },
}
"""Rows that collectors/sampling_source_plan.py names in choices, which may have a fact."""


def fields(reason: Reason) -> frozenset[str]:
    parts = (*Formatter().parse(reason.sentence), *Formatter().parse(reason.hint))
    return frozenset(field for _, field, _, _ in parts if field is not None)


def test_message_has_its_row_and_the_arguments_that_the_row_requires() -> None:
    found = list(_with_arguments())
    assert len(found) > 50
    assert [(where, name) for where, name, _ in found if name not in SENTENCES] == []
    unshown = frozenset({"pids"})  # join_pids(): for the agent, which splits a recording by service
    assert [each for each in found if each[2] - unshown != fields(SENTENCES[each[1]])] == []
    assert {name for _, name, _ in found} | _CHOSEN.keys() | _OF_ROUTER.keys() | _OF_PLAN.keys() == SENTENCES.keys()
    chosen = {**_CHOSEN, **_OF_ROUTER, **_OF_PLAN}
    assert {name: fields(SENTENCES[name]) for name in chosen} == chosen


def test_problems_of_files_are_made_from_rows_only() -> None:
    """Check that Diagnostics.problem() receives only results of problem(), problem_counted() or problem_of()."""
    given = [
        (f"{path.relative_to(ROOT)}:{node.lineno}", ast.unparse(node.args[1]))
        for folder in ("profiler", "unwind", "collectors", "interpreters")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in syntax.nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("iagnostics.problem")
    ]
    assert len(given) > 20
    assert [each for each in given if not each[1].startswith(("problem", "lacking", "found"))] == []
    makers = {
        f"{path.relative_to(ROOT)}"
        for path in sorted((ROOT / "profiler").rglob("*.py"))
        for node in syntax.nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Problem"
    }
    readers = {
        "profiler/recording/summary_rows.py",
        "profiler/importers/pprof_tables.py",
    }  # they read stored problems
    assert makers == {"profiler/model/loss_reason_texts.py", *readers}


def test_notes_are_made_by_the_function_that_takes_the_name_of_a_row() -> None:
    makers = {
        f"{path.relative_to(ROOT)}"
        for folder in ("profiler", "collectors", "interpreters", "exporters")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in syntax.nodes(path)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Note"
    }
    assert makers == {"profiler/model/loss_reason_texts.py"}


def test_note_has_the_sentence_of_its_row_with_its_arguments() -> None:
    note = make_note("threads_stopped_for_depth", threads=1)
    assert note.text.startswith("Stopped for their samples: 1 thread with stacks")
    assert " 1,234 threads with" in make_note("threads_stopped_for_depth", threads=1234).text
    assert make_note("until_interpreter", seconds=1.26).text.endswith("perf_events recorded: 1.3 s")
    assert make_note("by_events", event="{seconds}").text == "Sampled by perf_events ({seconds})"
    assert len(make_note("by_events", event="x" * 5000).text) < 4200


@pytest.mark.parametrize(
    ("note", "text"),
    [
        (Note("of_a_later_version", (("a", 1), ("b", "c"))), "of_a_later_version a=1 b=c"),
        (Note("by_events"), "by_events"),
        (Note("until_interpreter", (("seconds", "soon"),)), "until_interpreter seconds=soon"),
        (Note("threads_stopped_for_depth", (("threads", 1.5),)), "threads_stopped_for_depth threads=1.5"),
    ],
)
def test_note_that_fits_no_row_is_shown_by_its_identifier(note: Note, text: str) -> None:
    assert note.text == text


def test_note_of_a_file_is_read_back_from_its_json() -> None:
    note = make_note("rate_lowered", wanted=99, reached=9.5, limit=0.1)
    assert parse_note(**json.loads(json.dumps(note.to_json()))) == note


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("", {}),
        (7, {}),
        ("x" * 5000, {}),
        ("by_events", []),
        ("by_events", {"event": None}),
        ("by_events", {"event": True}),
        ("by_events", {"event": ["a"]}),
        ("by_events", {"event": "x" * 5000}),
        ("by_events", {"event": float("inf")}),
        ("by_events", {"event": float("nan")}),
        ("by_events", {"event": 10**4000}),
        ("by_events", {1: "a"}),
        ("by_events", dict.fromkeys(map(str, range(17)), 1)),
    ],
)
def test_note_of_a_file_with_other_values_is_refused(reason: object, arguments: object) -> None:
    with pytest.raises(ValueError, match="a note"):
        parse_note(reason, arguments)


def test_sentences_of_the_page_are_rows() -> None:
    """Check that the page's scripts contain no sentence: they show the texts in the page's data."""
    scripts = sorted((ROOT / "exporters/assets").glob("page.*.js"))
    sentence = re.compile(r"""["'`][A-Z][^"'`\n]* [^"'`\n]*\.["'`]""")
    assert len(scripts) > 20
    assert [(path.name, found) for path in scripts for found in sentence.findall(path.read_text())] == []
    assert sentence.findall('shown = "These stacks were cut short."; more = `${count}. Of both`;') != []
    used = "".join(path.read_text() for path in scripts)
    assert [name for name in WORDS if f"model.words.{name}" not in used] == []
    assert len(WORDS) == len(PAGE)


def test_problem_has_the_words_and_the_command_of_its_row() -> None:
    path = "'/a {b}'"
    assert problem("no_time_for_names", path=path) == Problem(
        "no names: the time to look them up ended",
        "record with -o FILE.pyprof, then: pyprof report FILE.pyprof --symbols '/a {b}'",
        "no_time_for_names",
    )
    hidden = "kernel_addresses_hidden"
    title = "addresses of the kernel's functions are hidden"
    assert problem_counted(hidden) == Problem(title, "sudo sysctl kernel.kptr_restrict=0", hidden)
    assert problem_of(FormatError(".eh_frame", 18, "no CIE")) == Problem(".eh_frame+0x12: no CIE", "", "malformed")
    assert problem_of(NoSuchProcess("there is no process 7")).hint == REFUSALS["no_process"].hint
    for asked in ASKS:
        assert problem_of(ControlRefused(asked.name, "why")).hint == asked.hint


def test_every_error_has_its_reason_and_every_refusal_an_error() -> None:
    for module, _ in sources():
        if module.startswith(("pyprof.collectors", "pyprof.session", "pyprof.unwind", "pyprof.interpreters")):
            import_module(module)
    kinds = {PyprofError}
    while more := {kind for known in kinds for kind in known.__subclasses__()} - kinds:
        kinds |= more
    assert {kind.reason for kind in kinds if kind.__module__.startswith("pyprof.")} == REFUSALS.keys()


def test_refusal_shows_the_remedy_of_its_reason_if_the_error_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    refuse(NoSuchProcess("there is no process 7"))
    refuse(NoSuchProcess("there is no process 8", "look again"))
    refuse(PyprofError("no"))
    assert capsys.readouterr().err.splitlines() == [
        "pyprof: there is no process 7",
        "  hint: run ps -e, which lists the processes",
        "pyprof: there is no process 8",
        "  hint: look again",
        "pyprof: no",
    ]


def test_every_end_of_a_stack_has_its_words() -> None:
    assert ENDS.keys() == {end.label for end in StackEnd} | {lacks("*"), PARTLY_READ, NOT_SAMPLED_LABEL}
    assert all(reason.title for reason in ENDS.values())
    cut = {name for name, reason in ENDS.items() if reason.cuts}
    assert cut == {end.label for end in StackEnd if end is not StackEnd.ROOT}


def test_language_of_missing_functions_is_named() -> None:
    reason = end_reason(lacks("Ruby"))
    assert reason is not None
    assert reason.end_title == "without Ruby functions"
    assert end_reason("norm") is None


def test_sentences_are_sentences_and_what_helps_is_none() -> None:
    for reason in (*COUNTERS, *ENDS.values(), *REFUSALS.values()):
        assert reason.sentence.endswith(".")
        assert not reason.hint.endswith(".")


def test_summary_tells_stage_meaning_and_what_helps() -> None:
    written = Summary(errors={"samples_lost": 2, "new": 1}, ends={"depth": 3, "new": 1}).to_json()
    assert written["counters"] == [
        {"name": "new", "count": 1, "title": "new", "stage": "", "meaning": "", "hint": ""},
        {
            "name": "samples_lost",
            "count": 2,
            "title": "sample lost: the ring was full",
            "stage": "sampling",
            "meaning": "The ring buffer was full when the kernel took a sample: pyprof was too slow to read earlier "
            "ones.",
            "hint": "use a lower rate (-r) or a smaller --stack-size",
        },
    ]
    assert written["reasons"] == {
        "depth": {
            "title": "cut short: maximum depth",
            "stage": "stacks",
            "meaning": "The stack has more frames than pyprof unwinds.",
            "hint": "use a larger --max-depth",
        }
    }


def test_what_a_profile_lacks_is_told_in_the_number_of_the_count() -> None:
    assert lacking({"samples_lost": 1}) == ["1 sample lost"]
    assert lacking({"samples_lost": 1234}) == ["1,234 samples lost"]
    assert lacking({"process_ended_early": 2}) == ["2 processes ended before the first sample"]
    cut = "system_call_cut_short:write"
    assert lacking({cut: 2}) == ["2 system calls of the target cut short by a stop (write)"]
    assert lacking({"samples_lost": 0}) == []
    assert lacking({"deleted_file_read": 3}) == []
    assert lacking({"nobody counts this": 3}) == []
    same = {"evaluator_without_frames": 53, "python_frame_chain_broken": 2}
    assert lacking({**same, "samples_lost": 1}) == [
        "55 stacks that may lack Python functions",
        "1 sample lost",
    ]


def test_cause_is_an_id_in_a_note_and_a_sentence_in_its_text() -> None:
    note = make_note("by_stops", why=make_cause("without_trampoline", version="3.13"))
    assert note.to_json()["arguments"] == {"why": "without_trampoline:3.13"}
    assert note.text.endswith("CPython 3.13 runs in it without a perf trampoline.")
    assert make_note("by_stops", why="no events: denied").text.endswith(": no events: denied")
