"""The profilers that are compared with pyprof: how to start each on a process, and how to count its samples.

A profiler that is not installed is left out of the tables. One that fails has no samples and no figures.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from bench import mojo, rooted
from bench.roots import austin, in_root_of
from bench.tools import Dumper, Got, Recorder

PYTHON = frozenset({"python", "frames"})
ROOTED = frozenset({"python315"})
INLINING = frozenset({"node", "rustc", "clang"})
"""Targets for which perf script needs minutes to find inlined functions. On these, perf is measured without inlined
functions.
"""


def _pyprof() -> list[str]:
    return [sys.executable, "-m", "pyprof"]


def _pyprof_got(folder: Path) -> Got:
    summary = json.loads((folder / "summary.json").read_text())
    return Got(int(summary["samples"]), int(summary["ends"].get("root", 0)))


def pyprof_by(collector: str) -> Recorder:
    return Recorder(
        f"pyprof --collector {collector}",
        lambda pid, rate, seconds, folder: [
            *_pyprof(), "record", "-q", "-p", str(pid), "-r", f"{rate:g}", "-d", f"{seconds:g}",
            "--collector", collector, "-o", str(folder / "out.html"), "--summary", str(folder / "summary.json"),
        ],
        None,
        _pyprof_got,
    )  # fmt: skip


_ROOTS = (b"_start", b"__clone3", b"clone3", b"__clone", b"clone", b"_dl_start_user")


def _perf_got(folder: Path) -> Got:
    """Count samples in the output of perf script: each is a line, its frames with the innermost first, and an empty
    line.
    """
    samples = whole = 0
    last = b""
    with open(folder / "script", "rb") as file:
        for line in file:
            if not line.strip():
                samples += bool(last)
                words = last.split()
                whole += len(words) > 1 and words[1].split(b"+")[0] in _ROOTS
                last = b""
            else:
                last = line
    if not samples:
        raise ValueError("no samples")
    return Got(samples, whole)


def _collapsed_got(folder: Path) -> Got:
    text = (folder / "out").read_text(errors="replace")
    samples = sum(int(n) for n in re.findall(r" (\d+)$", text, re.M))
    if not samples:
        raise ValueError("no samples")
    return Got(samples, None)


def _py_spy(name: str, *options: str) -> Recorder:
    return Recorder(
        name,
        lambda pid, rate, seconds, folder: [
            "py-spy", "record", *options, "-p", str(pid), "-r", f"{rate:.0f}", "-d", f"{seconds:.0f}",
            "-f", "raw", "-o", str(folder / "out"),
        ],
        None,
        _collapsed_got,
        PYTHON,
    )  # fmt: skip


def _austin_got(folder: Path) -> Got:
    return Got(mojo.samples((folder / "mojo").read_bytes()), None)


def _sampling(name: str, *options: str) -> Recorder:
    """Return a Recorder for the profiler that is part of CPython 3.15. It attaches only to interpreters of the same
    minor version.
    """
    return Recorder(
        name,
        lambda pid, rate, seconds, folder: [
            *in_root_of(pid), "/usr/bin/python3.15", "-m", "profiling.sampling", "attach", *options,
            "-r", f"{rate:.0f}", "-d", f"{seconds:.0f}", "--collapsed", "-o", str(folder / "out"), str(pid),
        ],
        None,
        _collapsed_got,
        ROOTED,
    )  # fmt: skip


def _perf(only: frozenset[str], *options: str, program: tuple[str, ...] = ("perf",)) -> Recorder:
    """Return a Recorder for perf. `options` are those of `perf script`."""
    script = " ".join([*program, "script", *options])
    return Recorder(
        " ".join(("perf --call-graph dwarf + script", *options)),
        lambda pid, rate, seconds, folder: [
            *program, "record", "-q", "-e", "cpu-clock:u", "-F", f"{rate:g}", "--call-graph", "dwarf", "-p", str(pid),
            "-o", str(folder / "perf.data"), "--", "sleep", f"{seconds:g}",
        ],
        lambda folder: ["sh", "-c", f"{script} -i {folder / 'perf.data'} > {folder / 'script'} 2>/dev/null"],
        _perf_got,
        only,
    )  # fmt: skip


_NATIVE = frozenset({"ladder", "ladder4", "busy10", "threads", "deep", "deep4000", "tower"})


def _of_root() -> list[Recorder]:
    """Return Recorders for the profilers in the root folder of a newer distribution that BENCH_ROOT names."""
    found = []
    if rooted.has("perf"):
        newer = _perf(_NATIVE | PYTHON, program=tuple(rooted.command("perf")))
        found.append(replace(newer, name=f"newer {newer.name}"))
    if rooted.has("samply"):
        found.append(Recorder("samply", rooted.samply, None, rooted.samply_got, _NATIVE | INLINING))
    return found


RECORDERS = (
    pyprof_by("perf"),
    pyprof_by("ptrace"),
    pyprof_by("bpf"),
    _perf(_NATIVE | PYTHON | ROOTED),
    _perf(INLINING, "--no-inline"),
    _py_spy("py-spy --native", "--native"),
    _py_spy("py-spy"),
    _py_spy("py-spy --nonblocking", "--nonblocking"),
    Recorder(
        "austinp",
        lambda pid, rate, seconds, folder: [
            *austin(), "-i", f"{1e6 / rate:.0f}us", "-x", f"{seconds:.0f}", "-p", str(pid), "-o", str(folder / "mojo"),
        ],
        None,
        _austin_got,
        PYTHON,
    ),
    _sampling("profiling.sampling"),
    _sampling("profiling.sampling --blocking", "--blocking"),
    *_of_root(),
)  # fmt: skip


DUMPERS = (
    Dumper("pyprof dump", lambda pid: [*_pyprof(), "dump", "-p", str(pid)], "_start"),
    Dumper("eu-stack", lambda pid: ["eu-stack", "-p", str(pid)], "_start"),
    Dumper("gdb", lambda pid: ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt"], "#1 "),
    Dumper("py-spy dump --native", lambda pid: ["py-spy", "dump", "--native", "--pid", str(pid)], "Thread "),
)
