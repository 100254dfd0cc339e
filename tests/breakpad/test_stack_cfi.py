"""Tests of STACK CFI as unwind rows: delta records add up, and unusable rules are counted."""

from __future__ import annotations

import pytest

from pyprof.model.arch import AARCH64, ARM, I386, X86_64, Arch
from pyprof.model.unwind_result import Trust
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.formats.breakpad_stack_cfi import StackCfi
from pyprof.unwind.rule_cache import SLOW, encode_fast_rule
from pyprof.unwind.rule_text import describe_rule
from pyprof.unwind.rules import FunctionRows
from tests.breakpad.support import symbol_file

pytestmark = pytest.mark.system

BASE = 0x40_0000


def source(text: str, arch: Arch = X86_64, diagnostics: Diagnostics | None = None) -> StackCfi:
    return StackCfi(lambda: symbol_file(text), BASE, arch, diagnostics or Diagnostics())


def described(rows: FunctionRows | None, arch: Arch = X86_64) -> dict[int, str]:
    assert rows is not None
    return {start - BASE: describe_rule(rule, arch) for start, rule in zip(rows.starts, rows.rules, strict=True)}


FUNCTION = """\
STACK CFI INIT 1000 40 .cfa: $rsp 8 + .ra: .cfa -8 + ^
STACK CFI 1001 .cfa: $rsp 16 + $rbp: .cfa -16 + ^
STACK CFI 1004 .cfa: $rbp 16 +
STACK CFI 1030 $rbp: $rbp .cfa: $rsp 8 +
"""


def test_rows_add_what_is_said_to_what_was_said() -> None:
    rows = source(FUNCTION).function_at(BASE + 0x1010)
    assert rows is not None
    assert (rows.start, rows.end) == (BASE + 0x1000, BASE + 0x1040)
    assert described(rows) == {
        0x1000: "cfa = sp + 8; ra = [cfa - 8]",
        0x1001: "cfa = sp + 16; fp = [cfa - 16]; ra = [cfa - 8]",
        0x1004: "cfa = fp + 16; fp = [cfa - 16]; ra = [cfa - 8]",
        0x1030: "cfa = sp + 8; fp = fp; ra = [cfa - 8]",
    }
    assert all(encode_fast_rule(rule, X86_64)[0] != SLOW for rule in rows.rules)


def test_source_covers_what_is_said_and_nothing_else() -> None:
    found = source(FUNCTION + "STACK CFI INIT 2000 8 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n")
    assert found.trust == Trust.BREAKPAD
    assert [found.function_at(BASE + at) is not None for at in (0xFFF, 0x1000, 0x103F, 0x1040, 0x2007, 0x2008)] == [
        False, True, True, False, True, False,
    ]  # fmt: skip
    start, end = found.extents()
    assert (start.tolist(), end.tolist()) == ([BASE + 0x1000, BASE + 0x2000], [BASE + 0x1040, BASE + 0x2008])
    assert [rows.start - BASE for rows in found.functions()] == [0x1000, 0x2000]


def test_init_that_another_one_begins_in_ends_there() -> None:
    rules = ".cfa: $rsp 8 + .ra: .cfa -8 + ^"
    found = source(f"STACK CFI INIT 1000 40 {rules}\nSTACK CFI INIT 1020 40 {rules}\n")
    assert [(rows.start - BASE, rows.end - BASE) for rows in found.functions()] == [(0x1000, 0x1020), (0x1020, 0x1060)]


PUSHED = ".ra: .cfa -8 + ^"
RULES = [
    (I386, ".cfa: $esp 4 + .ra: .cfa 4 - ^ $ebx: .cfa 8 - ^", "cfa = sp + 4; ebx = [cfa - 8]; ra = [cfa - 4]"),
    (X86_64, ".cfa: rsp 8 + .ra: .cfa 8 - ^", "cfa = sp + 8; ra = [cfa - 8]"),
    (ARM, ".cfa: sp .ra: lr", "cfa = sp; ra = lr"),
    (ARM, ".cfa: fp 8 + .ra: .cfa -4 + ^ r11: .cfa -8 + ^", "cfa = fp + 8; fp = [cfa - 8]; ra = [cfa - 4]"),
    (AARCH64, ".cfa: sp .ra: x30", "cfa = sp; ra = x30; pac"),
    (AARCH64, f".cfa: $x29 16 + {PUSHED} fp: .cfa -16 + ^", "cfa = fp + 16; fp = [cfa - 16]; ra = [cfa - 8]; pac"),
    (X86_64, f".cfa: $r10 -8 + ^ {PUSHED}", "cfa = [r10 - 8]; ra = [cfa - 8]"),
    (X86_64, f".cfa: $rsp 8 + {PUSHED} $rax: .undef", "cfa = sp + 8; rax = undefined; ra = [cfa - 8]"),
    (X86_64, f".cfa: $rsp 8 + {PUSHED} $rsp: .cfa 16 +", "cfa = sp + 8; sp = cfa + 16; ra = [cfa - 8]"),
    (X86_64, f".cfa: $rsp 8 + {PUSHED} $rsp: .cfa", "cfa = sp + 8; ra = [cfa - 8]"),
    (
        X86_64,
        f".cfa: $rbp 15 + 16 @ {PUSHED}",
        "cfa = expr(bregx 6 15; consts 16; lit1; minus; not; and); ra = [cfa - 8]",
    ),
]


@pytest.mark.parametrize(("arch", "rules", "rule"), RULES)
def test_rules_of_each_architecture(arch: Arch, rules: str, rule: str) -> None:
    rows = source(f"STACK CFI INIT 10 10 {rules}\n", arch).function_at(BASE + 0x10)
    assert described(rows, arch) == {0x10: rule}


def test_row_without_usable_cfa_or_ra_is_left_out_and_counted() -> None:
    diagnostics = Diagnostics()
    found = source(
        "STACK CFI INIT 10 40 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n"
        "STACK CFI 20 .cfa: $nope 8 +\n"
        "STACK CFI 30 .cfa: $rsp 16 +\n",
        diagnostics=diagnostics,
    )
    assert [(rows.start - BASE, rows.end - BASE) for rows in found.functions()] == [(0x10, 0x20), (0x30, 0x50)]
    assert found.function_at(BASE + 0x25) is None
    assert diagnostics.counts == {"stack_cfi_row_unusable": 1}
    assert list(source("STACK CFI INIT 10 10 .cfa: $rsp 8 +\n").functions()) == []
    assert list(source("STACK CFI INIT 10 10 .ra: .cfa -8 + ^ .cfa: .undef\n").functions()) == []


def test_register_whose_rule_cannot_be_used_is_lost_and_others_are_kept() -> None:
    diagnostics = Diagnostics()
    text = "STACK CFI INIT 10 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^ $rbx: $rbx + $rbp: .cfa -16 + ^ $xmm6: .cfa 8 - ^\n"
    rows = source(text, diagnostics=diagnostics).function_at(BASE + 0x10)
    assert described(rows) == {0x10: "cfa = sp + 8; rbx = undefined; fp = [cfa - 16]; ra = [cfa - 8]"}
    assert diagnostics.counts == {"stack_cfi_rule_unusable": 1, "stack_cfi_register_unknown": 1}


@pytest.mark.parametrize(
    "delta",
    [
        "STACK CFI 1f0 .cfa: $rsp 16 +",
        "STACK CFI 5 .cfa: $rsp 16 +",
        "STACK CFI zz .cfa: $rsp 16 +",
        "STACK CFI 18 8 +",
    ],
)
def test_delta_that_is_malformed_or_out_of_order_is_counted(delta: str) -> None:
    diagnostics = Diagnostics()
    text = f"STACK CFI INIT 10 10 .cfa: $rsp 8 + .ra: .cfa -8 + ^\n{delta}\n"
    found = StackCfi(lambda: symbol_file(text, diagnostics), BASE, X86_64, diagnostics)
    assert described(found.function_at(BASE + 0x10)) == {0x10: "cfa = sp + 8; ra = [cfa - 8]"}
    assert sum(diagnostics.counts.values()) == 1


def test_symbol_file_is_looked_for_at_the_first_question_and_once() -> None:
    asked = []
    found = StackCfi(lambda: asked.append(1), BASE, X86_64, Diagnostics())
    assert asked == []
    assert found.function_at(BASE) is None
    assert found.function_at(BASE + 1) is None
    assert list(found.functions()) == []
    assert found.extents()[0].tolist() == []
    assert asked == [1]
