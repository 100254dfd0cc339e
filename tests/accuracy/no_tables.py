"""A program without unwind tables, with the calls that its machine code makes.

Which function can call which is read from a disassembly by objdump. A stack is impossible if one of its functions
cannot have been called by the next outer one, or if it counts as whole and is not.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path

from tests.accuracy.thrown import Verdict
from tests.live.support.recording import record, running
from tests.support import build, need

PROGRAM = Path(__file__).parent / "programs" / "no_tables.c"
COLLECTORS = ("bpf", "perf", "ptrace")

_FLAGS = ("-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer", "-no-pie")
_FUNCTION = re.compile(r"([0-9a-f]+) <([^>]+)>:")
_LEADS = re.compile(r"\t(call|jmp|j\w+) +(\*(?!.*,8\))|([0-9a-f]+)(?: <|$))")  # without jump tables
_UNNAMED = re.compile(r"program!(0x[0-9a-f]+)")
_MARKER = re.compile(r"\[.*\]")
RATE = 1999
CALLED_BACK = ("sort_numbers", "compare")
"""Functions of the program between which only the C library stands."""
OWN = frozenset(re.findall(r"^(?:OWN )?\w+ (?:\*?)(\w+)\(.*\)$", PROGRAM.read_text(), re.MULTILINE))
"""Names of the program's own functions."""


@dataclass(frozen=True)
class Build:
    """A way to build the program.

    Attributes:
        compiler: The compiler.
        flags: Its flags.
        entries: Names of the functions from the program's entry to main.
        linked: The C library is part of the program, without tables, too.
    """

    compiler: str
    flags: tuple[str, ...]
    entries: frozenset[str]
    linked: bool = False

    @property
    def name(self) -> str:
        return " ".join((self.compiler, *self.flags[len(_FLAGS) :], PROGRAM.name))


_GLIBC = frozenset(("_start", "__libc_start_main", "__libc_start_call_main"))
_MUSL = frozenset(("_start", "_start_c", "__libc_start_main", "libc_start_main_stage2"))
BUILDS = (
    Build("gcc", _FLAGS, _GLIBC),
    Build("musl-gcc", (*_FLAGS, "-static"), _MUSL, linked=True),
    Build("musl-gcc", (*_FLAGS, "-static", "-s"), _MUSL, linked=True),
)


@dataclass
class Calls:
    """The calls that a program's machine code can make, by the names of its functions.

    Attributes:
        calls: Functions that each function calls.
        jumps: Functions to which each function jumps.
        indirect: Functions with indirect calls.
        leave: Functions that end in indirect jumps.
        names: The name of the function at each address, and that of each of its symbols.
    """

    calls: dict[str, set[str]] = field(default_factory=dict)
    jumps: dict[str, set[str]] = field(default_factory=dict)
    indirect: set[str] = field(default_factory=set)
    leave: set[str] = field(default_factory=set)
    names: dict[str | int, str] = field(default_factory=dict)

    def can_call(self, caller: str, callee: str) -> bool:
        """Return True if a function can be the next outer frame of another one. Its callees may end in jumps."""
        reached: set[str] = set()
        waiting = list(self.calls.get(caller, ()))
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += self.jumps.get(name, ())
        return callee in reached or caller in self.indirect or not self.leave.isdisjoint(reached)


def read_calls(program: Path) -> Calls:
    """Disassemble a program that has symbols."""
    found = Calls()
    leads: list[tuple[str, str, int]] = []
    name = ""
    for line in _lines_of("objdump", "-d", "--no-show-raw-insn", "-w", str(program)):
        if start := _FUNCTION.match(line):
            name = found.names[int(start[1], 16)] = start[2]
        elif (lead := _LEADS.search(line)) and lead[3]:
            leads.append((name, lead[1], int(lead[3], 16)))
        elif lead and lead[2] == "*":
            (found.indirect if lead[1] == "call" else found.leave).add(name)
    for caller, how, target in leads:
        if callee := found.names.get(target):
            (found.calls if how == "call" else found.jumps).setdefault(caller, set()).add(callee)
    for line in _lines_of("nm", "--defined-only", str(program)):
        address, _, symbol = line.split(maxsplit=2)
        found.names[symbol] = found.names.get(int(address, 16), symbol)
    return found


def _lines_of(tool: str, *arguments: str) -> list[str]:
    done = subprocess.run([need(tool), *arguments], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.splitlines()


def sample_program(how: Build, collector: str, folder: Path, samples: int, *options: str) -> Verdict:
    """Record the program until there are enough samples, and judge each stack."""
    program = build(PROGRAM, folder / "program", *how.flags, compiler=how.compiler)
    plain = build(PROGRAM, folder / "plain", *(flag for flag in how.flags if flag != "-s"), compiler=how.compiler)
    calls, base = read_calls(plain), _first_loaded(plain)
    stacks: dict[tuple[str, ...], int] = {}
    seconds = 0.7 + 1.2 * samples / RATE
    while sum(stacks.values()) < samples:
        with running(program) as target:
            chosen = ("--collector", collector, "--native", "all", *options)
            recorded = record(target.pid, folder, *chosen, seconds=min(10.0, seconds), rate=RATE)
        seconds *= 2  # a busy machine gives fewer samples
        for names, count in recorded.stacks.items():
            stack = tuple(_plain_name(name, calls, base) for name in names if not name.endswith("_[k]"))
            stacks[stack] = stacks.get(stack, 0) + count
    impossible = {";".join(stack): count for stack, count in stacks.items() if not is_possible(stack, how, calls)}
    whole = sum(count for stack, count in stacks.items() if not _MARKER.fullmatch(stack[0]))
    return Verdict(sum(stacks.values()), whole, 0, impossible)


def _first_loaded(program: Path) -> int:
    """Return the address of a program's first loaded byte, from which addresses in names are counted."""
    loads = [line.split() for line in _lines_of("readelf", "-lW", str(program)) if line.startswith("  LOAD")]
    return min(int(words[2], 16) for words in loads)


def _plain_name(name: str, calls: Calls, base: int) -> str:
    unnamed = _UNNAMED.fullmatch(name)
    address = base + int(unnamed[1], 16) if unnamed else -1
    return calls.names.get(address, calls.names.get(name, name))


def is_possible(stack: Sequence[str], how: Build, calls: Calls) -> bool:
    """Return True if the program can have this stack.

    Args:
        stack: Function names from root to leaf, after a marker if the stack is truncated.
        how: The build of the program.
        calls: Its calls.
    """
    cut = bool(_MARKER.fullmatch(stack[0]))
    names = stack[cut:]
    if not cut:
        before = list(takewhile(how.entries.__contains__, names))
        if before[:1] != ["_start"] or len(before) == len(names):
            return before[:1] == ["_start"]
        names = names[len(before) :]
    own = [name for name in names if name in OWN]
    if (not cut and names[0] != "main") or not _follow(own, calls):
        return False
    return not how.linked or all(calls.can_call(*pair) for pair in pairwise(names))


def _follow(own: Sequence[str], calls: Calls) -> bool:
    """Return True if each of the program's own functions can call the next one, itself or through the C library."""
    return all(pair == CALLED_BACK or calls.can_call(*pair) for pair in pairwise(own))
