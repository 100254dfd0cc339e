"""The programs that the benchmarks sample. They count their work, and some of them the gaps in their running time.
Others are compilers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.compilers import CLANG_SETTLES_S, RUST_SETTLES_S, clang, rust_compiler
from bench.roots import has, run_in

SOURCES = Path(__file__).parent / "targets"


@dataclass(frozen=True)
class Target:
    """A program that the benchmarks sample.

    Attributes:
        name: Name of the target for --targets.
        what: Description of the target.
        needs: Name of a program without which the target cannot run.
        build: Function that builds the target in a folder and returns a function from seconds to its command. The
            command ends by itself and prints {"work": ..., "gaps_10ns": ...}.
        busy: Number of threads that run.
        counts: False if the command prints nothing and must be killed.
        settle_s: Time in seconds until the target has started.
        there: Function that returns True if the target can run on this machine.
    """

    name: str
    what: str
    needs: str
    build: Callable[[Path], Callable[[float], list[str]]]
    busy: int = 1
    counts: bool = True
    settle_s: float = 0.3
    there: Callable[[], bool] = lambda: True

    @property
    def possible(self) -> bool:
        return shutil.which(self.needs) is not None and self.there()


def _compiled(source: str, *words: str, compiler: str = "gcc") -> Callable[[Path], Callable[[float], list[str]]]:
    def build(folder: Path) -> Callable[[float], list[str]]:
        program = folder / Path(source).stem
        flags = ["-O2", "-g", "-fomit-frame-pointer", "-pthread"]
        subprocess.run([compiler, *flags, "-o", str(program), str(SOURCES / source)], check=True)
        return lambda seconds: [str(program), f"{seconds:g}", *words]

    return build


def _java(folder: Path) -> Callable[[float], list[str]]:
    subprocess.run(["javac", "-d", str(folder), str(SOURCES / "Frames.java")], check=True)
    return lambda seconds: ["java", "-Xmx64m", "-XX:+UseSerialGC", "-cp", str(folder), "Frames", f"{seconds:g}"]


def _script(interpreter: str, source: str) -> Callable[[Path], Callable[[float], list[str]]]:
    return lambda folder: lambda seconds: [interpreter, str(SOURCES / source), f"{seconds:g}"]


def _in_root(suite: str, interpreter: str, source: str) -> Callable[[Path], Callable[[float], list[str]]]:
    def build(folder: Path) -> Callable[[float], list[str]]:
        program = shutil.copy(SOURCES / source, folder)
        return lambda seconds: [*run_in(suite), interpreter, str(program), f"{seconds:g}"]

    return build


TARGETS = (
    Target("ladder", "one busy thread, 30 frames", "gcc", _compiled("ladder.c", "1")),
    Target("ladder4", "four busy threads, 30 frames each", "gcc", _compiled("ladder.c", "4"), 4),
    Target("busy10", "ten busy threads, 30 frames each", "gcc", _compiled("ladder.c", "10"), 10),
    Target("threads", "500 threads of which 10 run", "gcc", _compiled("ladder.c", "10", "490"), 10),
    Target("deep", "2,000 frames", "gcc", _compiled("deep.c", "2000")),
    Target("deep4000", "4,000 frames, more than the kernel copies", "gcc", _compiled("deep.c", "4000")),
    Target("handlers", "a signal handler on its own stack, most of the time", "gcc", _compiled("handlers.c")),
    Target("calls", "pcs mostly in prologues and epilogues", "gcc", _compiled("calls.c")),
    Target("tower", "C++: templates, containers, exceptions", "g++", _compiled("tower.cc", compiler="g++")),
    Target("java", "Java, one busy thread, 30 compiled frames", "javac", _java, settle_s=3.0),
    Target("node", "node: JSON, sorting, regular expressions", "node", _script("node", "work.js")),
    Target(
        "rustc", "rustc -O: generics, one codegen unit", "rustc", rust_compiler, counts=False, settle_s=RUST_SETTLES_S
    ),
    Target("clang", "clang -O2: C++ templates", "clang++", clang, counts=False, settle_s=CLANG_SETTLES_S),
    Target("python", "CPython with extension modules", sys.executable, _script(sys.executable, "work.py")),
    Target("frames", "CPython, one busy thread, 30 frames", sys.executable, _script(sys.executable, "frames.py")),
    Target(
        "python315",
        "CPython 3.15 in a Debian root",
        "unshare",
        _in_root("sid", "/usr/bin/python3.15", "work.py"),
        settle_s=1.0,
        there=lambda: has("sid", "/usr/bin/python3.15"),
    ),
)

THREADS8 = Target("threads8", "eight busy threads, 30 frames each", "gcc", _compiled("ladder.c", "8"), 8)
THREADS5000 = Target(
    "threads5000", "5,000 threads of which one runs", "gcc", _compiled("ladder.c", "1", "4999"), settle_s=2.0
)
CHURN = Target(
    "churn",
    "processes, threads, libraries and functions come and go",
    sys.executable,
    _script(sys.executable, "churn.py"),
)
SERVICES = Target(
    "services", "CPython, eight threads that wait for work", sys.executable, _script(sys.executable, "service.py")
)
BY_NAME = {target.name: target for target in (*TARGETS, SERVICES, THREADS5000)}
