"""A Java program whose call graph is known, in each mode of the virtual machine: verdicts on its sampled stacks."""

from __future__ import annotations

from pathlib import Path

from tests.accuracy.thrown import Verdict
from tests.jit.java_ladder import MODES, impossible_calls, ladder
from tests.live.support.recording import record


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
    stacks: dict[tuple[str, ...], int] = {}
    with ladder(classes, *MODES[mode], java=java) as pid:
        while sum(stacks.values()) < samples:
            options = ("--collector", collector, "--native", "all")
            found = record(pid, folder, *options, seconds=min(10.0, 0.7 + samples / 1000), rate=1999)
            for stack, count in found.stacks.items():
                if any(frame.startswith("Ladder.") for frame in stack):
                    stacks[stack] = stacks.get(stack, 0) + count
    judged = {stack: count for stack, count in stacks.items() if impossible_calls(stack)}
    whole = sum(count for stack, count in stacks.items() if not stack[0].startswith("["))
    return Verdict(sum(stacks.values()), whole, 0, {";".join(stack): count for stack, count in judged.items()})
