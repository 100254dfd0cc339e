"""What starts programs and threads: which frames that are, in stacks made up and in those of real programs."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyprof.exporters.flame_tree import FlameTree, build
from pyprof.model.profile import Frame, FrameKind, Line, Profile
from pyprof.model.walk import Trust
from tests.exporters.conftest import OpenPage
from tests.exporters.profiles import Builder, code, marker, unknown
from tests.exporters.support import PLAIN
from tests.session.support import recorded
from tests.support import PROGRAMS, missing, need
from tests.support import build as compiled


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
    "a stack that is cut": ([], [marker("[truncated: no unwind rule]"), code("start_thread", 0, 0x400), WORK]),
}


@pytest.mark.parametrize("name", STACKS)
def test_start_ends_where_the_program_s_own_code_begins(name: str) -> None:
    outside, inside = STACKS[name]
    builder = Builder()
    builder.sample(builder.node([*outside, *inside]))
    tree = build(builder.build(), PLAIN)
    assert len(tree.parent) == 1 + len(outside) + len(inside)
    assert tree.start == set(range(1, len(outside) + 1))


def first_seen(profile: Profile) -> tuple[FlameTree, set[str], set[str]]:
    """The tree; names of the outermost frames that are not of the start, and of those that are."""
    tree = build(profile, PLAIN)
    name = [tree.frames[frame][0] for frame in tree.frame]
    outermost = [at for at in range(1, len(name)) if at not in tree.start and (tree.parent[at] in tree.start | {0})]
    return tree, {name[at] for at in outermost}, {name[at] for at in tree.start}


@contextlib.contextmanager
def running(*command: str | Path) -> Iterator[int]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def rust(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    program = tmp_path_factory.mktemp("rust") / "pool"
    compiled(PROGRAMS / "pool.rs", program, "-O", "--crate-name=pool", compiler="rustc")
    with running(program) as pid:
        return recorded("auto", [pid])


def test_first_of_a_rust_program_that_is_seen_is_its_own_code(rust: Profile) -> None:
    _, seen, folded = first_seen(rust)
    assert {"_start", "main", "std::rt::lang_start_internal"} <= folded
    assert any("thread_start" in name for name in folded)
    assert {name.split("::")[0] for name in seen} == {"pool"}


def test_labels_of_a_rust_program_tell_a_function(rust: Profile, open_page: OpenPage) -> None:
    page = open_page(rust)
    names = page.browser.run("model.frames.map(f => f.name).filter(n => n.includes('::'))")
    assert len(names) > 20
    assert any(name.startswith("<") for name in names)
    assert not [name for name in names if re.search(r"::h[0-9a-f]{16}$|\$(LT|GT|u20)\$", name)]
    fit = "model.frames.filter(f => f.name.includes('::')).flatMap(f => [8, 14, 20, 30].map(n => fitName(f.name, n)))"
    labels = page.browser.run(fit)
    assert not [text for text in labels if re.match(r"[^<]*>|.*::$|.*<$", text)]


THREADS = """
import threading, time
def busy():
    while time.time() < end: sum(range(500))
class Own(threading.Thread):
    def run(self): busy()
end = time.time() + 120
print("ready", flush=True)
threading.Thread(target=busy, daemon=True).start()
Own(daemon=True).start()
busy()
"""


def test_first_of_a_python_program_that_is_seen_is_its_own_code() -> None:
    with running(sys.executable, "-c", THREADS) as pid:
        profile = recorded("ptrace", [pid])
    _, seen, folded = first_seen(profile)
    assert {"_start", "Thread._bootstrap_inner", "Thread.run"} <= folded
    assert seen == {"<module>", "busy", "Own.run"}


def test_first_of_a_stripped_program_that_is_seen_is_its_main(tmp_path: Path) -> None:
    xz = shutil.which("xz")
    if xz is None:
        need("xz")
    assert xz
    if "no symbols" not in subprocess.run([need("nm"), xz], capture_output=True, text=True, check=False).stderr:
        missing("needs an xz without symbols")
    with subprocess.Popen([xz, "-9", "-c", "/dev/zero"], stdout=subprocess.DEVNULL) as process:
        try:
            profile = recorded("auto", [process.pid])
        finally:
            process.kill()
    tree, seen, folded = first_seen(profile)
    assert folded
    assert all(re.fullmatch(r"xz!0x[0-9a-f]+", name) for name in seen - {"main"})
    nameless = [name for name, group, _, _ in tree.frames if group.startswith("liblzma") and re.search(r"[!+]0x", name)]
    assert len(nameless) > 1
    assert not [name for name in nameless if "+0x" in name], "each is a function"
