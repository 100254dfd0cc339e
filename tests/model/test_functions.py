"""Tests of the costs of functions, and of the identity of functions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

from pyprof.cli.terminal_tables import function_tables, top
from pyprof.model.analysis.function_costs import Cost, Function, costs, functions_of, lock_costs
from pyprof.model.marker_frames import Mark, MarkKind
from pyprof.model.profile import Frame, FrameKind, Line, ModuleInfo, Profile
from pyprof.model.unwind_result import Trust
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
    assert [cost.name for cost in costs(builder.build()).functions if not cost.wraps] == ["std::min(int, int)", "clamp"]
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
    assert found.functions == (Cost(Function("bb" * 20, "work", FrameKind.NATIVE), "server", 30, 30, application=True),)


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


def python(name: str, file: str) -> Frame:
    line = Line(name, name, 0, file, 3)
    return Frame(FrameKind.INTERPRETER, 0, 0, 0, -1, (line,), Trust.CONTEXT, name)


WEB = "/venv/lib/python3.11/site-packages/flask/app.py"
SHOP = "/srv/shop/shop.py"


def web_server() -> Profile:
    """Return a profile of a request handler below a framework, with half of its time in native code."""
    serve = [python("<module>", "/venv/bin/gunicorn"), python("run", WEB), python("accept", WEB), python("handle", WEB)]
    builder = Builder()
    for name, inner, ns in (
        ("load", [code("sqlite3_step", 0)], 30),
        ("sign", [code("EVP_Digest", 0)], 20),
        ("sign", [], 1),
        ("render", [python("render", WEB)], 10),
    ):
        builder.sample(
            builder.node([code("main"), *serve, python("dispatch", WEB), python(name, SHOP), *inner]), cpu_ns=ns
        )
    builder.sample(builder.node([code("main"), *serve, python("log", WEB)]), cpu_ns=30)
    builder.sample(builder.node([code("main"), *serve[:3]]), cpu_ns=3)
    return builder.build()


def test_native_code_is_part_of_the_interpreters_function_that_calls_it() -> None:
    found = function_tables(web_server())
    assert [(cost.name, cost.own) for cost in found.functions.by_own(3)] == [("load", 30), ("log", 30), ("sign", 21)]
    assert [(cost.name, cost.own) for cost in found.native] == [("sqlite3_step", 30), ("EVP_Digest", 20)]
    assert found.is_interpreted


def test_native_stacks_beside_an_interpreter_keep_their_functions() -> None:
    builder = Builder()
    builder.sample(builder.node([code("start_thread"), code("compress", 0)]), cpu_ns=5)
    builder.sample(builder.node([code("main"), python("work", SHOP), code("compress", 0)]), cpu_ns=3)
    found = function_tables(builder.build())
    assert [(cost.name, cost.own) for cost in found.functions.by_own(9)] == [("compress", 5), ("work", 3)]
    assert [(cost.name, cost.own) for cost in found.native] == [("compress", 3)]
    assert not function_tables(golden_native()).native


def golden_native() -> Profile:
    builder = Builder()
    builder.sample(builder.node([code("main"), code("compress")]), cpu_ns=5)
    return builder.build()


def test_application_comes_before_the_framework_that_calls_it() -> None:
    found = function_tables(web_server()).functions
    assert [cost.name for cost in found.application_first(3)] == ["load", "sign", "render"]
    assert [cost.name for cost in found.application_first(5)] == ["load", "sign", "render", "dispatch", "log"]
    assert found.by_total(1)[0].name == "dispatch"


def test_function_through_which_nearly_everything_passes_is_left_out() -> None:
    builder = Builder()
    for name, ns in (("parse", 60), ("write", 36)):
        builder.sample(builder.node([code("main"), code("loop"), code("step"), code(name)]), cpu_ns=ns)
    builder.sample(builder.node([code("main"), code("loop")]), cpu_ns=3)
    builder.sample(builder.node([code("main")]), cpu_ns=1)
    found = costs(builder.build())
    assert [cost.name for cost in found.by_total(2)] == ["parse", "write"]
    assert {cost.name for cost in found.functions if cost.wraps} == {"main", "loop"}
    assert [cost.name for cost in found.by_total(9)] == ["main", "loop", "step", "parse", "write"]


def test_function_without_a_name_does_not_come_before_one_with_a_name() -> None:
    builder = Builder()
    builder.sample(builder.node([code("main"), code("server!0x6110"), code("parse")]), cpu_ns=40)
    builder.sample(builder.node([code("main"), code("server!0x6110")]), cpu_ns=20)
    builder.sample(builder.node([code("main"), code("read", 0)]), cpu_ns=40)
    found = costs(builder.build())
    assert [cost.name for cost in found.application_first(3)] == ["parse", "server!0x6110", "read"]


def test_function_that_calls_only_one_without_a_name_is_not_left_out() -> None:
    builder = Builder()
    for names, ns in ((("beforeSleep", "reply", "server!0x13c0b0", "write"), 70), (("processEvents", "query"), 30)):
        builder.sample(builder.node([code("main"), *(code(name, name != "write") for name in names)]), cpu_ns=ns)
    assert [cost.name for cost in costs(builder.build()).application_first(2)] == ["reply", "query"]


def test_of_two_functions_that_call_each_other_only_the_outer_one_wraps() -> None:
    builder = Builder()
    builder.sample(builder.node([code("main"), *[code("even"), code("odd")] * 50]), cpu_ns=10)
    assert {cost.name for cost in costs(builder.build()).functions if cost.wraps} == {"main", "even"}


def test_applications_native_functions_keep_their_time_below_an_interpreter() -> None:
    helper = replace(
        code("Py_DECREF"), lines=(Line("Py_DECREF", "Py_DECREF", 0, "/usr/include/python3.11/object.h", 3),)
    )
    cython = replace(
        code("shop.Cart.total"), lines=(*helper.lines, Line("shop.Cart.total", "__pyx_pf_4shop_4Cart_total"))
    )
    builder = Builder()
    stack = [code("main"), python("work", SHOP), cython]
    builder.sample(builder.node(stack), cpu_ns=3)
    builder.sample(builder.node([*stack, code("__Pyx_Call", rel=0x20)]), cpu_ns=4)
    builder.sample(builder.node([*stack, code("malloc", 0)]), cpu_ns=5)
    found = function_tables(builder.build())
    assert [(cost.name, cost.own) for cost in found.functions.by_own(3)] == [("shop.Cart.total", 12)]
    assert [(cost.name, cost.own) for cost in found.native] == [("malloc", 5), ("__Pyx_Call", 4), ("Py_DECREF", 3)]


def test_native_code_is_part_of_the_script_function_that_calls_it() -> None:
    def script(name: str, file: str) -> Frame:
        return code(f"JS:{name} {file}:3:14", -1)

    emit, handle = script("emit", "node:events"), script("handle", "/srv/app.js")
    builder = Builder()
    builder.sample(builder.node([code("main"), emit, handle, code("v8::Stringify", 0)]), cpu_ns=5)
    builder.sample(builder.node([code("main"), code("uv_run", 0)]), cpu_ns=2)
    found = function_tables(builder.build()).functions
    assert [(cost.name, cost.own) for cost in found.by_own(9)] == [("JS:handle /srv/app.js:3:14", 5), ("uv_run", 2)]
    assert found.application_first(1)[0].name == "JS:handle /srv/app.js:3:14"


def test_functions_with_a_source_file_that_were_compiled_at_run_time_come_first() -> None:
    """Count native code in the Java method that calls it. Only the application's class comes first, and no stub."""
    jit = ModuleInfo("[jit] hotspot", "", 0x7000_0000, 0x7100_0000, 0, True, False)

    def method(name: str, file: str | None) -> Frame:
        return replace(code(name, file=file), module=len(MODULES))

    run, put = method("Shop.run", "Shop.java"), method("java.util.HashMap.put", "HashMap.java")
    builder = Builder()
    builder.sample(builder.node([code("main"), method("call_stub", None), run, put, code("memmove", 0)]), cpu_ns=9)
    builder.sample(builder.node([code("main"), method("call_stub", None), run, code("memset", 0)]), cpu_ns=2)
    found = function_tables(builder.build(modules=(*MODULES, jit)))
    own = [(cost.name, cost.module, cost.own) for cost in found.functions.by_own(9)]
    assert own == [("java.util.HashMap.put", "HashMap.java", 9), ("Shop.run", "Shop.java", 2)]
    assert [cost.name for cost in found.functions.functions if cost.application] == ["Shop.run", "main"]
    assert [cost.name for cost in found.native] == ["memmove", "memset"]


@pytest.mark.parametrize(("path", "expected"), [("[jit] gdb", True), ("[jit] hotspot", False)])
def test_code_that_a_compiler_registers_is_of_the_application_and_a_stub_is_not(path: str, expected: bool) -> None:
    module = ModuleInfo(path, "", 0x7000_0000, 0x7100_0000, 0, True, False)
    builder = Builder()
    builder.sample(builder.node([code("main"), replace(code("compiled"), module=len(MODULES))]), cpu_ns=9)
    found = costs(builder.build(modules=(*MODULES, module)))
    assert {cost.name: cost.application for cost in found.functions} == {"compiled": expected, "main": True}


def test_application_with_hardly_any_time_does_not_come_before_a_library() -> None:
    builder = Builder()
    builder.sample(builder.node([code("main"), code("options")]), cpu_ns=1)
    builder.sample(builder.node([code("main"), code("lzma_code", 0)]), cpu_ns=99)
    found = costs(builder.build())
    assert [cost.name for cost in found.application_first(3)] == ["main", "lzma_code", "options"]
