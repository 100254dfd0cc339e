"""Programs that throw exceptions or call longjmp(3) forever, with their possible stacks.

main calls attempt, attempt calls level1, and each level calls the next one. level6 leaves all of them at once. No other
functions are called except for those of the unwinder and the C++ runtime.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.live.support.recording import Recording, record, running
from tests.support import build, need

PROGRAMS = Path(__file__).parent / "programs"
COLLECTORS = ("bpf", "perf", "ptrace")

_CALLS = ["main", "attempt", *(f"level{n}" for n in range(1, 7))]
_OWN = re.compile(rf"({'|'.join(_CALLS)})(?:\(int\))?(?: \(\.[\w.]+\))?")
_PART = re.compile(r"_ZL?\d+([a-z]+\d?)i?(?:\.\w+)*|([a-z]+\d?)(?:\.\w+)*")
_MARKER = re.compile(r"\[(?:truncated: .*|in the unwinder)\]")
_BEFORE_MAIN = 3
"""Number of functions of the C library and its start-up file that call main."""
_LONGJMP = {"longjmp", "_longjmp", "siglongjmp", "__libc_siglongjmp", "__libc_longjmp"}
"""Symbol names of longjmp(3) in the C library."""
_ENTERED_FROM: dict[str, set[str]] = {
    "_Unwind_RaiseException": {"__cxa_throw"},
    "__cxa_throw": {"level6"},
    "_Unwind_Resume": {f"level{n}" for n in range(1, 7)},
    **{name: {"level6"} for name in _LONGJMP},
    "__longjmp": _LONGJMP,
}
_UNKNOWN_ADDRESS = re.compile(r"\[unknown\].*")


@dataclass(frozen=True)
class Build:
    """A command that builds a program."""

    compiler: str
    source: str
    flags: tuple[str, ...] = ("-O2",)

    @property
    def name(self) -> str:
        return " ".join((self.compiler, *self.flags, self.source))


BUILDS = (
    Build("g++", "throw_six.cc"),
    Build("clang++", "throw_six.cc"),
    Build("g++", "throw_six.cc", ("-O2", "-fno-omit-frame-pointer", "-static")),
    Build("gcc", "long_jumps.c", ("-O2", "-static")),
)


@dataclass(frozen=True)
class Verdict:
    """The samples of a recording, counted by kind.

    Attributes:
        samples: Number of all samples.
        whole: Number of samples whose stack reaches the program's first function.
        in_unwinder: Number of samples whose stack ends with the marker of the unwinder.
        impossible: Number of samples by stack that the program cannot have, from root to leaf.
    """

    samples: int
    whole: int
    in_unwinder: int
    impossible: dict[str, int]


def sample_program(how: Build, collector: str, folder: Path, samples: int, rate: int = 1999) -> Verdict:
    """Record a program until there are enough samples, and judge each stack."""
    program = build(PROGRAMS / how.source, folder / "program", *how.flags, compiler=how.compiler)
    stacks: dict[tuple[str, ...], int] = {}
    seconds = 0.7 + 1.2 * samples / rate
    while sum(stacks.values()) < samples:
        with running(program) as target:
            symbols = _symbols(target.pid)
            options = ("--collector", collector, "--native", "all")
            found = record(target.pid, folder, *options, seconds=min(10.0, seconds), rate=rate)
        seconds *= 2  # a busy machine gives fewer samples
        for stack, count in _names(found, symbols).items():
            stacks[stack] = stacks.get(stack, 0) + count
    impossible = {";".join(stack): count for stack, count in stacks.items() if not is_possible(stack)}
    cut = sum(count for stack, count in stacks.items() if stack[0] == "[in the unwinder]")
    whole = sum(count for stack, count in stacks.items() if not _MARKER.fullmatch(stack[0]))
    return Verdict(sum(stacks.values()), whole, cut, impossible)


def is_possible(stack: Sequence[str]) -> bool:
    """Return True if the program can have this stack.

    Args:
        stack: Function names from root to leaf, after a marker if the stack is truncated.
    """
    cut = bool(_MARKER.fullmatch(stack[0]))
    names = [found[1] if (found := _OWN.fullmatch(name)) else name for name in stack[cut:]]
    if any(map(_UNKNOWN_ADDRESS.fullmatch, names)):
        return False
    at = [index for index, name in enumerate(names) if name in _CALLS]
    own = [names[index] for index in at]
    if at and (at != list(range(at[0], at[0] + len(at))) or not _follows(own)):
        return False
    if not cut and (at[:1] != [_BEFORE_MAIN] or own[0] != "main"):
        return len(names) <= _BEFORE_MAIN and not at
    return all(caller in _ENTERED_FROM.get(callee, {caller}) for caller, callee in pairwise(names))


def _follows(own: Sequence[str]) -> bool:
    first = _CALLS.index(own[0])
    return list(own) == _CALLS[first : first + len(own)]


def _names(recording: Recording, symbols: dict[str, str]) -> dict[tuple[str, ...], int]:
    """Return the stacks of the samples without kernel frames.

    A recording on a busy machine may end before all functions have names. Such functions appear as addresses.
    """
    found: dict[tuple[str, ...], int] = {}
    for stack, count in recording.stacks.items():
        names = tuple(symbols.get(name, name) for name in stack if not name.endswith("_[k]"))
        found[names] = found.get(names, 0) + count
    return found


def _symbols(pid: int) -> dict[str, str]:
    """Map "FILE!0xADDRESS", as which a function without a name appears, to the function's name, for all files of a
    process.
    """
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = {Path(line.split(maxsplit=5)[5]) for line in maps if " r-xp " in line and line.count("/")}
    return {f"{path.name}!{address:#x}": name for path in paths for address, name in _symbols_of_file(path).items()}


@cache
def _symbols_of_file(path: Path) -> dict[int, str]:
    """Return the functions of a file by address."""
    found = {}
    for table in ((), ("-D",)):
        command = [need("nm"), *table, "--defined-only", str(path)]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
        for address, _, name in (line.split(maxsplit=2) for line in listed.splitlines()):
            part = _PART.fullmatch(name)
            found[int(address, 16)] = (part[1] or part[2]) if part else name.split("@")[0]
    return found
