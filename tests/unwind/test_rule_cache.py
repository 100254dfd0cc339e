"""Tests of cached rules by pc, which must be those of the time when rules change while the process runs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pyprof.model.address_space import AddressSpace, Mapping
from pyprof.model.arch import X86_64
from pyprof.model.unwind_result import Trust
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind import rule_cache
from pyprof.unwind.module_unwind_sources import NoRuntimeRules, RuleAt
from pyprof.unwind.rule_cache import MetPcs
from pyprof.unwind.rule_lookup import RuleIndex
from pyprof.unwind.rules import FunctionRows, RegKind, RegRule, Rule


@pytest.mark.parametrize("bits", [1, 4, 13])
def test_ids_are_those_that_a_search_gives(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(rule_cache, "_PLACE_BITS", bits)
    random, met, searched = np.random.default_rng(bits), MetPcs(), 0

    def search(pcs: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        nonlocal searched
        searched += len(pcs)
        return (pcs % np.uint64(1000)).astype(np.int64) + 1

    some = np.append(random.integers(1 << 40, (1 << 40) + 60, 97), [0, 1, 2]).astype(np.uint64)
    some = np.append(some, np.uint64((1 << 64) - 1))
    asked = 0
    for _ in range(50):
        pcs = random.choice(some, 80)
        asked += len(pcs)
        assert met.find_ids(pcs, search).tolist() == ((pcs % np.uint64(1000)).astype(np.int64) + 1).tolist()
    assert searched < asked / 10 or bits < 13


class Registered(NoRuntimeRules):
    """JIT code at BASE whose frames have the size that was registered last."""

    def __init__(self) -> None:
        self.size = 16

    def version(self, space: AddressSpace) -> int:
        return self.size

    def rows(
        self, space: AddressSpace, pc: int, exact: bool, time_ns: int, rule_at: RuleAt
    ) -> tuple[FunctionRows, Trust] | None:
        rule = Rule(X86_64.sp, self.size, RegRule(RegKind.AT_CFA, -8))
        return FunctionRows(BASE, BASE + 0x1000, (BASE,), (rule,)), Trust.GDB_JIT


BASE = 0x10000


@pytest.mark.parametrize("exact", [True, False])
def test_rules_that_change_while_a_process_runs_are_those_of_the_time(exact: bool) -> None:
    registered, diagnostics = Registered(), Diagnostics()
    index = RuleIndex(X86_64, ImageStore(diagnostics), UnwindOptions(), diagnostics, runtime=registered)
    mapping = Mapping(BASE, BASE + 0x1000, "rwxp", 0, "00:00", 0, "")
    rules = index.open_space(AddressSpace(1, 1, 0, (mapping,), lambda avma, size: b"", ""))
    versions = set()
    for size in (16, 32, 48):
        registered.size = size
        rules.set_time(size)
        versions.add(rules.version)
        for _ in range(2):
            found = [rules.lasting_rule_id(pc, exact) for pc in range(BASE, BASE + 8)]
            assert {int(index.rules.cfa_off[rule]) for rule, _ in found} == {size}
            assert not any(lasting for _, lasting in found)
    assert len(versions) == 3
