"""Tests of the modules that a command loads: expensive ones for other purposes stay out."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HEAVY = {
    "numpy.ma": "10 ms; model/prefix_tree.py does without",
    "numpy.random": "20 ms; nothing needs it",
    "dataclasses": "compiles what it makes when it is imported; lazy_dataclasses.py does not",
    "_hashlib": "loads OpenSSL",
    "ptrace": "python-ptrace; its names of system calls are for kernel frames and waits",
    "difflib": "for command lines with a mistake",
    "logging": "nothing is logged; concurrent.futures imports it",
    "subprocess": "for the few names that are demangled apart, and the library's worker",
    "pycxxfilt": "for names that are mangled",
    "urllib.request": "with http, email and ssl: for symbol servers",
    "xml": "for GDB stubs",
    "psutil": "for doctor",
    "rich": "for doctor",
    "elftools": "for inspect",
    "shtab": "for completion",
    "numpy._typing": "10 ms; what is annotated is checked without it: cli/accelerated_start.py leaves it out",
    "pyprof.collectors.gdb_stub": "for stubs",
    "pyprof.collectors.offcpu": "for --mode offcpu and wall",
    "pyprof.collectors.bpf": "for interpreters, and commands that are started",
    "pyprof.objfile.gopclntab": "for programs that are written in Go",
    "pyprof.unwind.code_analysis": "for functions without tables",
    "pyprof.unwind.formats.exidx_section": "for 32-bit ARM",
    "pyprof.unwind.formats.sframe_source": "for files that have it",
    "pyprof.exporters.flamegraph": "for its format",
}
"""Modules that a native recording or dump must not load, with their cost or purpose."""

NAMING = {"pyprof.symbolize", "pyprof.unwind", "pyprof.objfile.elf_file", "pyprof.interpreters.cpython.frame_reader"}
"""Packages that the worker loads in addition to the sampler, or that are not loaded unless an interpreter runs."""
SAMPLER, WORKER = 131, 188
"""Maximum number of pyprof's modules in the sampler and in the worker."""

LISTS = ("--no-sandbox",)
"""A worker without rights could not write what it has loaded. It loads more (tests/session/test_sandbox_modules.py)."""

LOAD = """
import atexit, os, sys, time
to = sys.argv.pop(1)
def report():
    with open(to, "a") as file:
        there = [name for name, module in sys.modules.items() if "numpy_parts" not in str(type(module))]
        file.write(" ".join(there) + "\\n")
def leave(code, leave=os._exit):
    report()
    leave(code)
def kill(pid, number, kill=os.kill):
    time.sleep(1)  # a worker that is not needed any more is killed: this one writes what it has loaded before
    kill(pid, number)
os._exit = leave
os.kill = kill
atexit.register(report)
from pyprof_start import main
main()
"""


COLLECT = """
import gc
from pyprof.cli.accelerated_start import prepare
prepare(["record"])
counts = []
gc.callbacks.append(lambda phase, _: counts.append(phase))
import pyprof.session.worker.worker_loop, pyprof.session.recording_factory
during_imports = len(counts)
from pyprof.session.worker.worker_process import freeze_loaded_objects
freeze_loaded_objects()
objects = [[] for _ in range(50_000)]
print(during_imports, len(counts) - during_imports)
"""


WRITE = """
import io, sys
from pyprof.cli.terminal_summary import report
from pyprof.exporters import registry
from pyprof.exporters.base import ExportOptions
from pyprof.model.analysis.idle_waits import without_idle
from tests.model.test_functions import web_server
from tests.model.test_idle import CONSUMER, POOL, waits
def write(name):
    return registry.find_format(name).write(web_server(), io.BytesIO(), options=ExportOptions())
steps = {
    "summary": lambda: report(web_server(), 80, True, False),
    "flamegraph": lambda: write("flamegraph"),
    "idle": lambda: without_idle(waits(POOL, CONSUMER, CONSUMER)),
    "recording": lambda: write(registry.RECORDING),
}
assert "numpy.ma" not in sys.modules
for name, step in steps.items():
    step()
    if "numpy.ma" not in sys.modules:
        print(name)
"""
"""A program that prints the steps at the end of a Python recording after which numpy.ma is not loaded."""

LOADED_AT_HANDLER = """
import _signal, os, sys
before = set(sys.modules)
def report(number, action):
    print(*(sys.modules.keys() - before), flush=True)
    assert (number, action) == (_signal.SIGINT, _signal.SIG_DFL)
    os._exit(0)
_signal.signal = report
with open(sys.argv[1]) as file:
    exec(file.read(), {"__name__": "started"})
"""
"""A program that reports which modules a file imports before it changes the action of SIGINT."""

LOADED_AT_BLOCK = """
import _signal, os, sys
before = set(sys.modules)
path = sys.argv.pop(1)
def report(how, signals):
    print(*(sys.modules.keys() - before), flush=True)
    assert (how, signals) == (_signal.SIG_BLOCK, (_signal.SIGUSR1,))
    os._exit(0)
_signal.pthread_sigmask = report
with open(path) as file:
    exec(file.read(), {"__name__": "started"})
"""
"""A program that reports which modules a file imports before it blocks SIGUSR1."""


def loaded(out: Path, *arguments: str) -> list[set[str]]:
    """Return the modules of each process of a command at its end."""
    command = [sys.executable, "-c", LOAD, str(out), *arguments]
    subprocess.run(command, capture_output=True, timeout=60, check=False, start_new_session=True)  # no front process
    return [set(line.split()) for line in out.read_text().splitlines()]


def ours(modules: set[str]) -> int:
    return sum(name.startswith("pyprof.") for name in modules)


def test_help_loads_no_more_than_parsers(tmp_path: Path) -> None:
    (modules,) = loaded(tmp_path / "loaded", "--help")
    assert modules & {*HEAVY, "numpy", "pyprof.model.profile", "pyprof.session.session"} == set()
    assert ours(modules) <= 42


def test_imports_of_urgent_commands_have_no_garbage_collections() -> None:
    found = subprocess.run([sys.executable, "-c", COLLECT], capture_output=True, text=True, timeout=60, check=True)
    during_imports, afterwards = map(int, found.stdout.split())
    assert during_imports == 0
    assert afterwards > 0


def test_writing_a_python_recording_does_not_load_numpys_masked_arrays() -> None:
    done = subprocess.run([sys.executable, "-c", WRITE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["summary", "flamegraph", "idle", "recording"]


@pytest.mark.parametrize("name", ["pyprof_start", "pyprof.__main__"])
def test_ctrl_c_has_its_default_action_before_modules_are_loaded(name: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    # without site, which imports many modules for an editable installation
    command = [sys.executable, "-I", "-S", "-c", LOADED_AT_HANDLER, spec.origin]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.split() == ["__future__"]


@pytest.mark.parametrize("name", ["pyprof_start", "pyprof.__main__"])
def test_signal_of_the_flight_recorder_is_blocked_before_modules_are_loaded(name: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    command = [sys.executable, "-I", "-S", "-c", LOADED_AT_BLOCK, spec.origin, "record"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.split() == ["__future__"]


@pytest.mark.live
@pytest.mark.system
def test_native_recording_loads_what_it_uses(tmp_path: Path) -> None:
    out = str(tmp_path / "x.collapsed")
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            command = ("record", *LISTS, "-o", out, "-d", "0.05", "-p", str(sleeper.pid))
            keeper, worker, sampler = loaded(tmp_path / "loaded", *command)
        finally:
            sleeper.kill()
    for modules in (keeper, worker, sampler):
        assert modules & HEAVY.keys() == set()
    assert "pyprof.cli.terminal_summary" in keeper
    assert not [name for name in keeper if name.startswith(("pyprof.collectors.perf", "pyprof.collectors.combined"))]
    assert "pyprof.symbolize" in worker
    assert sampler & NAMING == set()
    assert ours(sampler) <= SAMPLER
    assert ours(worker) <= WORKER


@pytest.mark.live
@pytest.mark.system
def test_dump_loads_what_it_uses(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            keeper, worker, sampler = loaded(tmp_path / "loaded", "dump", *LISTS, "-p", str(sleeper.pid))
        finally:
            sleeper.kill()
    for modules in (keeper, worker, sampler):
        assert modules & HEAVY.keys() == set()
    assert "pyprof.symbolize" in worker
    assert sampler & NAMING == set()
    assert ours(sampler) <= SAMPLER
    assert ours(worker) <= WORKER
