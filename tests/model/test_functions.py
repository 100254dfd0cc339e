"""What functions cost, and when two are the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given

from pyprof.cli.top_table import top
from pyprof.model.functions import Cost, Function, costs, functions_of, lock_costs
from pyprof.model.markers import Mark, MarkKind
from pyprof.model.profile import FrameKind, ModuleInfo, Profile
from tests.exporters.profiles import LIBC, MODULES, Builder, code, deep, golden, marker, profiles


def by_function(profile: Profile) -> dict[tuple[str, str], tuple[int, int]]:
    found = {(cost.module, cost.name): (cost.own, cost.total) for cost in costs(profile).functions}
    assert found
    return found


@given(profiles())
def test_costs_of_any_profile_are_what_its_stacks_say_one_by_one(profile: Profile) -> None:
    own: Counter[Function] = Counter()
    total: Counter[Function] = Counter()
    for leaf, value in zip(profile.stack.tolist(), profile.values[:, -1].tolist(), strict=True):
        stack = [[function for function, _ in functions_of(profile, frame)] for frame in profile.path(leaf)]
        for function in {function for row in stack for function in row}:
            total[function] += value
        if stack and stack[-1]:
            own[stack[-1][-1]] += value
    found = costs(profile)
    assert found.value == sum(profile.values[:, -1].tolist())
    assert {cost.function: cost.total for cost in found.functions} == {f: t for f, t in total.items() if t}
    assert all(own[cost.function] == cost.own for cost in found.functions)
    assert sum(cost.own for cost in found.functions) <= found.value
    assert all(0 <= cost.own <= cost.total <= found.value for cost in found.functions)


def test_function_of_one_file_is_one_in_all_processes_and_at_all_addresses() -> None:
    again = replace(LIBC, path="/other/root/usr/lib/libc.so.6", start=0x7E00_0000_0000, end=0x7E00_0020_0000)
    other = ModuleInfo("/opt/other.so", "dd" * 20, 0x10_0000, 0x20_0000, 0, True, False)
    builder = Builder()
    for module in (0, len(MODULES), len(MODULES) + 1):
        frame = replace(code("memset", 0, 0x900), module=module, pc=module * 0x1000)
        builder.sample(builder.node([code("main"), frame]), cpu_ns=10)
    found = by_function(builder.build(modules=(*MODULES, again, other)))
    assert found["libc.so.6", "memset"] == (20, 20)
    assert found["other.so", "memset"] == (10, 10)


def test_recursion_counts_each_sample_once() -> None:
    profile = deep(depth=3000, samples=5)
    found = by_function(profile)
    everything = int(profile.values[:, -1].sum())
    assert found["server", "recurse"] == (everything * 5 // 6, everything)


def test_innermost_inlined_function_has_the_own_cost_and_its_holder_the_total() -> None:
    profile = golden()
    inlined = next(frame for frame in profile.frames if len(frame.lines) == 3)
    builder = Builder()
    builder.sample(builder.node([code("main"), inlined]), cpu_ns=10)
    assert by_function(builder.build())["server", "std::min(int, int)"] == (10, 10)
    assert by_function(builder.build())["server", "handle(Request&)"] == (0, 10)
    assert [cost.name for cost in costs(builder.build()).functions if not cost.wraps] == ["std::min(int, int)"]
    found = by_function(profile)
    assert found["server", "std::min(int, int)"] == (0, 50_000_000)
    assert found["server", "handle(Request&)"] == (0, 50_000_000)
    assert found["libc.so.6", "memcpy"] == (120_000_000, 120_000_000)
    assert found["app.py", "<module>"] == (0, 30_000_000)


def test_markers_are_no_functions_but_their_time_is_part_of_the_whole() -> None:
    builder = Builder()
    builder.sample(builder.node([marker("[truncated]"), code("work")]), cpu_ns=30)
    builder.sample(builder.node([marker("[truncated]")]), cpu_ns=70)
    found = costs(builder.build())
    assert found.value == 100
    assert found.functions == (Cost(Function("bb" * 20, "work", FrameKind.NATIVE), "server", 30, 30),)


def test_dearest_come_first_and_start_up_is_not_among_the_totals() -> None:
    builder = Builder()
    start, main = code("_start"), code("main")
    builder.sample(builder.node([start, main, code("cheap")]), cpu_ns=10)
    builder.sample(builder.node([start, main, code("dear")]), cpu_ns=30)
    builder.sample(builder.node([start]), cpu_ns=20)
    found = costs(builder.build())
    assert [(cost.name, cost.own) for cost in found.by_own(2)] == [("dear", 30), ("_start", 20)]
    assert [(cost.name, cost.total) for cost in found.by_total(2)] == [("dear", 30), ("cheap", 10)]
    assert (found.by_total(3)[0].name, found.by_total(3)[0].total) == ("main", 40), "where there is room"
    assert found.by_own(9)[-1].own > 0


def test_locks_have_what_was_waited_for_them() -> None:
    builder = Builder()
    gil, other = (
        replace(marker(title), mark=Mark(MarkKind.LOCK, name=title.strip("[]"))) for title in ("[GIL]", "[lock 0x10]")
    )
    builder.sample(builder.node([other, code("work")]), cpu_ns=10)
    builder.sample(builder.node([gil, code("work"), code("wait")]), cpu_ns=20)
    builder.sample(builder.node([gil, code("other")]), cpu_ns=5)
    builder.sample(builder.node([code("work")]), cpu_ns=7)
    assert lock_costs(builder.build()) == [("[GIL]", 25), ("[lock 0x10]", 10)]
    table = list(top(builder.build(), 80, 9))
    assert table[3].split()[-1] == "[GIL]"
    assert table[4].split()[-2:] == ["[lock", "0x10]"]
    assert all(len(line) <= 80 for line in table)
    assert lock_costs(golden()) == []


def test_what_only_calls_another_function_comes_in_where_there_is_room() -> None:
    builder = Builder()
    trunk = [code("_start"), code("main"), code("run"), code("loop"), code("step")]
    builder.sample(builder.node([*trunk, code("parse")]), cpu_ns=30)
    builder.sample(builder.node([*trunk, code("write"), code("flush")]), cpu_ns=20)
    builder.sample(builder.node([*trunk, code("check")]), cpu_ns=10)
    found = costs(builder.build())
    assert [cost.name for cost in found.by_total(4)] == ["step", "parse", "flush", "check"]
    assert [cost.name for cost in found.by_total(9)][:4] == ["step", "loop", "main", "run"]
    assert {cost.name for cost in found.functions if cost.wraps} == {"_start", "main", "run", "loop", "write"}


def test_functions_that_cost_the_same_side_by_side_are_all_shown() -> None:
    builder = Builder()
    for name in ("one", "two", "three"):
        builder.sample(builder.node([code("main"), code(name)]), cpu_ns=10)
    found = costs(builder.build())
    assert {cost.name for cost in found.by_total(4)} == {"main", "one", "two", "three"}
    assert not any(cost.wraps for cost in found.functions)
