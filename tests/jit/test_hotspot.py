"""Tests of running Java programs: whole stacks and names without options, in the interpreter and compiled code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pyprof.collectors.linux import procfs
from pyprof.model.arch import X86_64
from pyprof.objfile.elf_file import ElfFile
from pyprof.runtime_code.hotspot.code_cache import STUB_LIST
from pyprof.runtime_code.hotspot.java_frames import JavaVm
from pyprof.runtime_code.hotspot.methods import show_class
from pyprof.runtime_code.hotspot.vm_structs import SYMBOLS
from tests.jit.java_ladder import MAIN, MODES, PROGRAM, compile_ladder, impossible_calls, ladder, own
from tests.live.support.recording import Recording, dump, record, running
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_ladder(tmp_path_factory.mktemp("java"))


def has_compiled(recording: Recording) -> bool:
    """Return True if the program's own code has enough of the samples, most of which are the compilers' at first."""
    return sum(n for stack, n in recording.stacks.items() if own(stack)) > max(100, 0.3 * recording.samples)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "tiered"])
def test_stacks_are_whole_and_have_no_impossible_caller(classes: Path, tmp_path: Path, mode: str) -> None:
    """Test each compiler alone. tests/accuracy/test_java.py has all of them in one process."""
    with ladder(classes, *MODES[mode]) as pid:
        recording = record(pid, tmp_path, "--native", "all", seconds=1, rate=999, until=has_compiled)
    in_java = {stack: n for stack, n in recording.stacks.items() if own(stack)}
    assert [call for stack in recording.stacks for call in impossible_calls(stack)] == []
    assert {own(stack)[0] for stack in in_java} == {"main"}
    assert sum(in_java.values()) > 0.3 * recording.samples
    assert recording.whole > 0.98
    assert not [frame for stack in recording.stacks for frame in stack if frame.startswith("[unknown]")]
    assert recording.summary["trust"]["hotspot"] > 3 * sum(in_java.values())
    roots = {stack[: stack.index(frame)] for stack in recording.stacks for frame in stack if frame.startswith(MAIN)}
    (root,) = {tuple(frame.partition(" / ")[0] for frame in found) for found in roots}
    assert root[-1] == "call_stub"
    assert "JavaMain" in root


def test_thread_that_sleeps_in_a_native_method_has_a_whole_stack(tmp_path: Path) -> None:
    """Test a thread that is read without a stop, below interpreted methods. Its frame pointer is searched for."""
    source = PROGRAM.with_name("Reader.java")
    subprocess.run([need("javac"), "-d", str(tmp_path), str(source)], check=True, timeout=300)
    with running(need("java"), "-Xint", "-cp", tmp_path, "Reader") as process:
        found = dump(process.pid)["threads"]
        hidden = dump(process.pid, "--native", "extensions")["threads"]
    stacks = [([frame["function"] for frame in thread["frames"]], thread["name"]) for thread in found]
    ((own, name),) = [(stack, name) for stack, name in stacks if "Reader.main" in stack]
    assert name == "reader whose name has more than 15 bytes"
    methods = own[own.index("sun.nio.ch.SocketDispatcher.read0") : own.index("Reader.main")]
    assert all(name.startswith(("java.", "sun.")) for name in methods)
    assert own[own.index("Reader.main") + 1] == "call_stub"
    assert "JavaMain" in own
    modules = [[frame["module"].rpartition("/")[2] for frame in thread["frames"]] for thread in hidden]
    with_java = [found for found in modules if "[jit] hotspot" in found]
    assert with_java
    assert not [found for found in with_java if {"libjvm.so", "libjli.so"} & set(found[:-1])]
    assert [found for found in modules if found not in with_java and "libjvm.so" in found], "the machine's own threads"
    (shown,) = [
        names for thread in hidden if "Reader.main" in (names := [frame["function"] for frame in thread["frames"]])
    ]
    assert shown == [name for name in own if name in shown]
    assert "call_stub" not in shown


def test_names_of_compiled_methods_equal_those_of_the_perf_map(classes: Path) -> None:
    """Compare with the perf map that the virtual machine writes when it exits."""
    options = ("-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit")
    with running(need("java"), *options, "-cp", classes, "Ladder") as process:
        ours: dict[tuple[int, int], str] = {}
        while sum(name.startswith("Ladder.") for name in ours.values()) < 20:
            ours, stubs = read_all(process.pid)
        process.terminate()
        process.wait(timeout=100)
        path = Path(f"/tmp/perf-{process.pid}.map")
        entries = [line.split(" ", 2) for line in path.read_text().splitlines()]
        path.unlink()
    theirs = {(int(start, 16), int(size, 16)): name for start, size, name in entries if "(" in name}
    compared = [(ours[place], as_ours(theirs[place])) for place in ours.keys() & theirs.keys()]
    assert len(compared) > 100
    assert [pair for pair in compared if pair[0] != pair[1]] == []
    assert "call_stub" in stubs
    assert any(name.startswith("jbyte_disjoint_arraycopy") for name in stubs)


def as_ours(name: str) -> str:
    """Return class and method of a method with types: `void a.B.f(int)`."""
    head = re.sub(r"\(.*", "", name).rpartition(" ")[2]
    kind, _, method = head.rpartition(".")
    return f"{show_class(kind)}.{method}"


def read_all(pid: int) -> tuple[dict[tuple[int, int], str], set[str]]:
    """Return the names of all compiled methods of a process by address and size, and the names of its stubs."""
    space = procfs.read_address_space(pid, 1, generation=0)
    module = next(module for module in space.modules if module.name == "libjvm.so")
    symbols = ElfFile.open(module.path).named_symbols((*SYMBOLS, STUB_LIST))
    vm = JavaVm(space, {name: module.start + svma for name, svma in symbols.items()}, X86_64)
    codes = list(vm.list_code())
    stubs = {code.name_at(stub.start) for code in codes for stub in code.stubs}
    return {(blob.start, blob.end - blob.start): code.name for code in codes if (blob := code.blob).is_nmethod}, stubs
