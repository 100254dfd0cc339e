"""Tests of the choice of the start-up frames of programs and threads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyprof.exporters.flamegraph_tree import build_flame_tree
from pyprof.model.profile import Frame, FrameKind, Line
from pyprof.model.unwind_result import Trust
from tests.exporters.profiles import Builder, code, marker, unknown
from tests.exporters.support import PLAIN


def python(name: str, file: str) -> Frame:
    return Frame(FrameKind.INTERPRETER, 0, 0, 0, -1, (Line(name, name, 0, file, 3),), Trust.INTERPRETER, name)


def of_libc(rel: int) -> Frame:
    frame = unknown(0, rel)
    title = f"libc.so.6!{rel:#x}"
    return replace(frame, lines=(Line(title, "", 4),), title=title)


MAIN = code("main")
WORK = code("work", rel=0x900)
START = [code("_start"), code("__libc_start_main@@GLIBC_2.34", 0), code("__libc_start_call_main", 0, 0x200)]
THREAD = [code("clone3", 0, 0x300), code("start_thread", 0, 0x400)]
CALL_ONCE = code("<alloc::boxed::Box<F,A> as core::ops::function::FnOnce<Args>>::call_once", rel=0x430)

THREADING = "/usr/lib/python3.11/threading.py"
APP = "/srv/app.py"
STACKS = {
    "C": ([*START], [MAIN, WORK]),
    "a thread": ([*THREAD], [WORK, code("start_thread", rel=0x500)]),
    "a stripped program": ([unknown(2, 0x10), START[1], of_libc(0x29D)], [unknown(2, 0x90), WORK]),
    "a thread of a stripped libc": ([of_libc(0x100), of_libc(0x200)], [WORK]),
    "nothing but libc without symbols": ([of_libc(0x100)], [of_libc(0x200)]),
    "C++": (
        [
            *THREAD,
            code("execute_native_thread_routine", rel=0x400),
            code("std::thread::_State_impl<std::thread::_Invoker<std::tuple<main::{lambda()#1}> > >::_M_run()", rel=1),
            code("void std::__invoke_impl<void, main::{lambda()#1}>(std::__invoke_other)", rel=2),
        ],
        [code("main::{lambda()#1}::operator()() const", rel=3), code("std::__invoke<int>", rel=4)],
    ),
    "Rust": (
        [
            *START,
            MAIN,
            code("std::rt::lang_start_internal", rel=0x410),
            code("std::panic::catch_unwind", rel=0x420),
            code("std::rt::lang_start::{{closure}}", rel=0x425),
            CALL_ONCE,
        ],
        [code("app::main", rel=0x440), CALL_ONCE],
    ),
    "Rust beside C": ([*START], [MAIN, CALL_ONCE]),
    "Go": ([code("runtime.goexit.abi0"), code("runtime.main", rel=0x200)], [code("main.main", rel=0x300)]),
    "Python": ([START[0]], [python("<module>", APP), python("run", APP)]),
    "a module of Python": (
        [START[0], python("_run_module_as_main", "<frozen runpy>"), python("_run_code", "<frozen runpy>")],
        [python("<module>", APP)],
    ),
    "a thread of Python": (
        [
            *THREAD,
            python("Thread._bootstrap", THREADING),
            python("_bootstrap_inner", THREADING),
            python("Thread.run", THREADING),
        ],
        [python("Worker.run", APP), python("Thread.run", THREADING)],
    ),
    "Java": (
        [
            *THREAD,
            code("ThreadJavaMain", rel=0x410),
            code("JavaMain", rel=0x420),
            code("jni_CallStaticVoidMethod", rel=0x430),
            code("JavaCalls::call_helper(JavaValue*, methodHandle const&, JavaCallArguments*, JavaThread*)", rel=0x440),
            code("call_stub", rel=0x450),
        ],
        [code("app.Main.main", rel=0x460), code("java.lang.Thread.run", rel=0x470)],
    ),
    "a thread of Java": (
        [
            *THREAD,
            code("thread_native_entry(Thread*)", rel=0x410),
            code("JavaThread::run()", rel=0x420),
            code("thread_entry(JavaThread*, JavaThread*)", rel=0x430),
            code("call_stub", rel=0x440),
            code("java.lang.Thread.run", rel=0x450),
            code("java.util.concurrent.ThreadPoolExecutor$Worker.run", rel=0x460),
            code("java.util.concurrent.ThreadPoolExecutor.runWorker", rel=0x470),
        ],
        [code("app.Task.run", rel=0x480)],
    ),
    "a stack that is cut": ([], [marker("[truncated: no unwind rule]"), code("start_thread", 0, 0x400), WORK]),
}


def test_main_that_calls_more_than_its_runtime_is_the_program_s_own() -> None:
    builder = Builder()
    builder.sample(builder.node([*START, MAIN, code("std::rt::lang_start", rel=0x410), WORK]))
    builder.sample(builder.node([*START, MAIN, WORK]))
    assert build_flame_tree(builder.build(), PLAIN).start == {1, 2, 3}


@pytest.mark.parametrize("name", STACKS)
def test_start_ends_where_the_program_s_own_code_begins(name: str) -> None:
    outside, inside = STACKS[name]
    builder = Builder()
    builder.sample(builder.node([*outside, *inside]))
    tree = build_flame_tree(builder.build(), PLAIN)
    assert len(tree.parent) == 1 + len(outside) + len(inside)
    assert tree.start == set(range(1, len(outside) + 1))


def test_framework_through_which_everything_passes_is_part_of_the_start() -> None:
    web = "/venv/lib/python3.11/site-packages/web/server.py"
    outside = [*START, python("<module>", "/venv/bin/serve"), python("serve", web), python("accept", web)]
    route = [*outside, python("route", web)]
    builder = Builder()
    builder.sample(builder.node([*route, python("products", "/srv/shop.py")]), cpu_ns=60)
    builder.sample(builder.node([*route, python("login", "/srv/shop.py")]), cpu_ns=36)
    builder.sample(builder.node([*outside, python("log", web)]), cpu_ns=4)
    assert build_flame_tree(builder.build(), PLAIN).start == set(range(1, len(outside) + 1))


def test_framework_that_spends_some_time_itself_is_start_and_an_application_is_not() -> None:
    web = "/venv/lib/python3.11/site-packages/web/server.py"
    for file, is_start in ((web, True), ("/srv/shop.py", False)):
        outside = [*START, python("<module>", "/venv/bin/serve"), python("serve", file)]
        builder = Builder()
        builder.sample(builder.node([*outside, python("dispatch", web), python("products", "/srv/shop.py")]), cpu_ns=90)
        builder.sample(builder.node([*outside, python("log", web)]), cpu_ns=10)
        found = build_flame_tree(builder.build(), PLAIN).start
        assert (len(outside) in found) == is_start


def test_application_that_calls_one_function_after_the_other_is_no_start() -> None:
    builder = Builder()
    steps = [python(name, "/srv/batch.py") for name in ("<module>", "main", "run", "step")]
    builder.sample(builder.node([*START, *steps]), cpu_ns=60)
    assert build_flame_tree(builder.build(), PLAIN).start == set(range(1, len(START) + 1))
