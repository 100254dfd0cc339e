"""Tests of single-stepped programs: at every instruction both walkers find the stack of calls and returns.

The tests name the remaining differences, which docs/accuracy.md explains function by function. Any other difference
fails with the oracle's report. For longer runs: python -m tests.oracle PROGRAM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from pyprof.options import CODE
from tests.live.support.ladders import folder, ladder
from tests.oracle.judge import Mismatch
from tests.oracle.report import describe, describe_all, lines
from tests.oracle.run import Oracle, Plan, Result
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

NO_TABLE = re.compile(r"_init|\[\.init\]|__mpn_\w+")
"""Functions of libc without unwind tables. .init and .fini have no symbols and appear as sections."""

LEAVING = "cut short (unwinder)"
"""Mismatch while an exception or longjmp replaces registers: the stack is marked instead of having a wrong caller."""

REALIGNED = re.compile(r"r_\d\d")
"""Functions with a DRAP epilogue, in which gcc omits the CFI for restored registers."""


EVERYTHING = Plan()


@dataclass(frozen=True)
class Case:
    """A program and its accepted differences from the shadow stack.

    Attributes:
        explained: Functions in which states may differ.
        leaves: Whether the program leaves functions by exceptions or longjmp.
        most: Maximum number of states that may differ.
    """

    name: str
    arguments: tuple[str, ...] = ("once",)
    plan: Plan = EVERYTHING
    explained: tuple[re.Pattern[str], ...] = (NO_TABLE,)
    leaves: bool = False
    most: int = 30
    at_least: int = 2000


CASES = [
    Case("ladder"),
    Case("ladder.stripped"),
    Case("ladder_fp"),
    Case("ladder_debug_frame"),
    Case("ladder_static", plan=Plan(start="entry", every=3)),
    Case("ladder_static_pie", plan=Plan(start="entry", every=3)),
    Case("ladder_deep", ("once", "150")),
    Case("ladder_drap", explained=(NO_TABLE, REALIGNED)),
    Case("ladder_plt", plan=Plan(every=2)),
    Case("ladder_signal", leaves=True),
    Case("ladder_libc", plan=Plan(every=4), leaves=True, most=100),
    Case("ladder_dlopen", ("once", "{one}", "{other}"), Plan(every=4), most=60),
    Case("ladder_fork"),
    Case("ladder_throw", plan=Plan(every=16), leaves=True, most=200),
    Case("ladder_rs", plan=Plan(every=4), leaves=True, most=60),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_walkers_agree_with_the_shadow_stack_at_every_instruction(case: Case) -> None:
    program = ladder(case.name)
    libraries = {"one": str(ladder("libone.so")), "other": str(ladder("libother.so"))}
    arguments = [word.format(**libraries) for word in case.arguments]
    check(Oracle([str(program), *arguments], case.plan).run(), case)


def test_loader_is_followed_from_its_first_instruction() -> None:
    case = Case("ladder", plan=Plan(start="entry", every=8, limit=60_000), at_least=1000)
    check(Oracle([str(ladder("ladder")), "once"], case.plan).run(), case)


def test_shell_is_followed_through_forks_and_pipes() -> None:
    case = Case("sh", plan=Plan(every=4))
    script = "for i in 1 2; do echo $i | cat; done; x=$(echo $((6 * 7))); test $x = 42"
    check(Oracle([need("sh"), "-c", script], case.plan).run(), case)


def test_code_alone_of_a_stripped_program_gives_no_wrong_caller() -> None:
    result = Oracle([str(ladder("ladder_musl")), "once"], Plan(every=8, sources=(CODE,))).run()
    report = "\n".join(lines(result))
    assert [m for m in result.mismatches if not m.what.startswith("cut short")] == [], report
    assert result.exact >= 0.98 * result.compared > 2000, report


def check(result: Result, case: Case) -> None:
    report = "\n".join(lines(result))
    assert result.judge.walkers_differ == [], report
    assert len(result.visits) >= case.at_least, report
    describe_all(m.place for m in result.mismatches)
    unexplained = [m for m in result.mismatches if not explained(m, case)]
    assert unexplained == [], report
    assert len(result.judge.wrong_keys) <= case.most, report


def explained(mismatch: Mismatch, case: Case) -> bool:
    if case.leaves and mismatch.what == LEAVING:
        return True
    function = describe(mismatch.place)[0].split("+")[0]
    return any(pattern.fullmatch(function) for pattern in case.explained)


def test_mismatch_is_found_reported_and_given_its_address() -> None:
    """Unwind code without frame pointers by frame pointers alone, which the oracle must report as wrong."""
    result = Oracle([str(ladder("ladder")), "once"], Plan(start="a_01", sources=("fp",), limit=4000)).run()
    assert result.exact < result.compared
    report = "\n".join(lines(result))
    assert re.search(r"ladder\+0x\w+ a_\d\d\+\d+: (wrong caller|cut short|too long)", report)
    assert str(folder()) in result.command[0]
