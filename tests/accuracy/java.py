"""A Java program whose call graph is known, in each mode of the virtual machine: verdicts on its sampled stacks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.accuracy.thrown import Verdict
from tests.jit.java_ladder import (
    MODES,
    impossible_calls,
    impossible_virtual_calls,
    ladder,
    virtual_threads,
)
from tests.live.support.recording import record
from tests.support import need

Judge = Callable[[tuple[str, ...]], list[tuple[str, str]]]
"""Function that returns the calls in a stack that the program does not make."""


def sample_java(mode: str, collector: str, classes: Path, folder: Path, samples: int, java: str = "java") -> Verdict:
    """Record the program until there are enough samples of its functions, and judge each of their stacks.

    Threads of the virtual machine do not count. The kernel cuts the stacks of its compiler at pages that were never
    written.

    Args:
        mode: A key of MODES.
        collector: Name of the collector.
        classes: Folder of the compiled program.
        folder: Folder for the outputs.
        samples: Minimum number of samples.
        java: The virtual machine's program.
    """
    with ladder(classes, *MODES[mode], java=java) as pid:
        return _judge(pid, collector, folder, samples, "Ladder.", impossible_calls)


def sample_virtual_threads(
    mode: str, collector: str, classes: Path, folder: Path, samples: int, java: str = "java"
) -> Verdict:
    """Record and judge the program with virtual threads, as sample_java() does. JDK 21 or later must run it."""
    with virtual_threads(classes, *MODES[mode], java=java) as pid:
        return _judge(pid, collector, folder, samples, "Virtual.", impossible_virtual_calls)


def has_virtual_threads(java: str) -> bool:
    """Return True if a Java virtual machine is of JDK 21 or later."""
    said = subprocess.run([need(java), "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    found = re.search(r'version "(\d+)', said)
    return found is not None and int(found[1]) >= 21


def _judge(pid: int, collector: str, folder: Path, samples: int, prefix: str, judge: Judge) -> Verdict:
    stacks: dict[tuple[str, ...], int] = {}
    while sum(stacks.values()) < samples:
        options = ("--collector", collector, "--native", "all")
        found = record(pid, folder, *options, seconds=min(10.0, 0.7 + samples / 1000), rate=1999)
        for stack, count in found.stacks.items():
            if any(frame.startswith(prefix) for frame in stack):
                stacks[stack] = stacks.get(stack, 0) + count
    judged = {stack: count for stack, count in stacks.items() if judge(stack)}
    whole = sum(count for stack, count in stacks.items() if not stack[0].startswith("["))
    return Verdict(sum(stacks.values()), whole, 0, {";".join(stack): count for stack, count in judged.items()})
