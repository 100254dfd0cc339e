"""A Java program whose call graph is known (programs/Ladder.java), and the judgement of its stacks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from tests.live.support.recording import running
from tests.support import need

MAIN = "Ladder.main"
PROGRAM = Path(__file__).parent / "programs" / "Ladder.java"
CALLS = {
    "main": {"all"},
    "all": {"recurse", "catcher", "virtual", "lambda", "allocate", "sort", "copy"},
    "recurse": {"recurse", "three"},
    "three": {"two"},
    "two": {"one", "spin"},
    "one": {"spin"},
    "catcher": {"thrower", "spin"},
    "thrower": {"spin"},
    "virtual": {"A.area", "B.area", "C.area"},
    **{name: {"spin"} for name in ("A.area", "B.area", "C.area", "lambda$lambda$0")},
    "lambda": {"Lambda.applyAsLong", "Lambda.get$Lambda"},
    "Lambda.applyAsLong": {"lambda$lambda$0"},
    "sort": {"Lambda.compare"},
    "Lambda.compare": {"lambda$sort$1"},
}
"""The functions of the program that each of them calls, directly or through functions of the library."""
MODES = {
    "interpreted": ["-Xint"],
    "C1": ["-XX:TieredStopAtLevel=1"],
    "C2": ["-XX:-TieredCompilation"],
    "tiered": [],
    "growing code cache": ["-XX:-SegmentedCodeCache", "-XX:InitialCodeCacheSize=200k"],
}


def compile_ladder(folder: Path) -> Path:
    """Compile the programs into a folder, and return the folder. JDK 8 and later can run Ladder."""
    programs = str(PROGRAM), str(PROGRAM.with_name("Virtual.java"))
    command = [need("javac"), "--release", "8", "-Xlint:-options", "-d", str(folder), *programs]
    subprocess.run(command, check=True, timeout=300)
    return folder


@contextmanager
def ladder(classes: Path, *options: str, java: str = "java") -> Iterator[int]:
    with running(need(java), *options, "-XX:+UseSerialGC", "-cp", classes, "Ladder") as process:
        yield process.pid


VIRTUAL_CALLS = {
    "work": {"down", "wide", "catcher"},
    "down": {"down", "rest", "spin"},
    "wide": {"wide", "rest", "spin"},
    "catcher": {"thrower", "spin"},
    "thrower": {"thrower", "rest", "spin"},
}
"""The functions of programs/Virtual.java that each of them calls."""
FROZEN = "cont_returnBarrier"
"""Frame that stands for frozen ones: a thread continues there with some function of the program."""


@contextmanager
def virtual_threads(classes: Path, *options: str, java: str = "java") -> Iterator[int]:
    """Run the program with virtual threads (programs/Virtual.java). It needs JDK 21 or later."""
    with running(need(java), *options, "-cp", classes, "Virtual") as process:
        yield process.pid


def impossible_virtual_calls(stack: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the calls in a stack that programs/Virtual.java does not make, as (caller, callee)."""
    names = [frame.partition(" / ")[0].removeprefix("Virtual.") for frame in stack]
    functions = [name for name in names if name in VIRTUAL_CALLS or name in ("rest", "spin")]
    wrong = [
        (caller, callee) for caller, callee in pairwise(functions) if callee not in VIRTUAL_CALLS.get(caller, set())
    ]
    if functions and not stack[0].startswith("["):
        before = names[names.index(functions[0]) - 1]
        wrong += [(before, functions[0])] if functions[0] != "work" and before != FROZEN else []
        wrong += [("", "Continuation.run")] if "jdk.internal.vm.Continuation.run" not in names else []
    return wrong


def own(stack: tuple[str, ...]) -> list[str]:
    """Return the functions of the program in a stack from root to leaf."""
    names = (re.match(r"Ladder(?:\.|\$\$?)(.*)", frame.partition(" / ")[0]) for frame in stack)
    return [found[1] for found in names if found and not found[1].endswith(".<init>")]


def impossible_calls(stack: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the calls in a stack of the program's functions that the program does not make, as (caller, callee).

    The caller is "" if a stack that is not truncated begins with another function than main.
    """
    functions = own(stack)
    begins = functions[:1] if functions[:1] != ["main"] and not stack[0].startswith("[") else []
    wrong = [(caller, callee) for caller, callee in pairwise(functions) if callee not in CALLS.get(caller, set())]
    return [*(("", first) for first in begins), *wrong]
