"""Tests of a Java program whose call graph is known: no recorded stack is one that the program cannot have."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.accuracy.java import sample_java
from tests.chance import share_margin
from tests.jit.java_ladder import compile_ladder, impossible_calls, impossible_virtual_calls
from tests.live.support.recording import record, running
from tests.support import need

pytestmark = [pytest.mark.live, pytest.mark.system]

SAMPLES_OF_A_PHASE = 4
"""Number of successive samples that fall into the same loop: the program changes its loop every few milliseconds."""
SAMPLES = 2000
"""Number of samples. `make accuracy` takes 100,000 by each collector in each mode of the virtual machine."""


def test_no_stack_of_a_java_program_is_impossible(tmp_path: Path) -> None:
    """Take copies of the kernel. tests/jit/test_hotspot.py records the program by stops."""
    found = sample_java("tiered", "bpf", compile_ladder(tmp_path), tmp_path, SAMPLES)
    assert found.samples >= SAMPLES
    assert found.impossible == {}
    assert found.whole > 0.98 * found.samples


@pytest.mark.parametrize(
    ("stack", "calls"),
    [
        (("start", "Ladder.main", "Ladder.all", "Ladder.sort", "java.util.Arrays.sort", "Ladder$$Lambda.compare"), []),
        (("[truncated: no unwind rule]", "Ladder.two", "Ladder.one / Ladder.java:17"), []),
        (("start", "Ladder.all", "Ladder.copy"), [("", "all")]),
        (("start", "Ladder.main", "Ladder.two", "Ladder.one"), [("main", "two")]),
        (("start", "Ladder.main", "Ladder.all", "Ladder.copy", "Ladder$A.area"), [("copy", "A.area")]),
    ],
    ids=["whole", "truncated", "other root", "frame left out", "frame too many"],
)
def test_calls_that_the_program_does_not_make_are_impossible(
    stack: tuple[str, ...], calls: list[tuple[str, str]]
) -> None:
    assert impossible_calls(stack) == calls


@pytest.mark.parametrize(
    ("stack", "calls"),
    [
        (("jdk.internal.vm.Continuation.run", "Virtual.work", "Virtual.down / Virtual.java:25", "Virtual.spin"), []),
        (("jdk.internal.vm.Continuation.run", "cont_returnBarrier", "Virtual.wide", "Virtual.spin"), []),
        (("[truncated: no unwind rule]", "Virtual.thrower", "Virtual.rest"), []),
        (
            ("jdk.internal.vm.Continuation.run", "Virtual.wide", "Virtual.spin"),
            [("jdk.internal.vm.Continuation.run", "wide")],
        ),
        (("start", "Virtual.work", "Virtual.down"), [("", "Continuation.run")]),
        (
            ("jdk.internal.vm.Continuation.run", "cont_returnBarrier", "Virtual.spin", "Virtual.down"),
            [("spin", "down")],
        ),
    ],
    ids=["all frames", "frozen frames", "truncated", "frame left out", "other root", "other order"],
)
def test_calls_that_the_virtual_threads_do_not_make_are_impossible(
    stack: tuple[str, ...], calls: list[tuple[str, str]]
) -> None:
    assert impossible_virtual_calls(stack) == calls


def test_loops_with_and_without_safepoints_have_their_shares(tmp_path: Path) -> None:
    source = Path(__file__).parent / "programs" / "Bias.java"
    subprocess.run([need("javac"), "-d", str(tmp_path), str(source)], check=True, timeout=300)
    # samples of an inlined loop without a safepoint count for its caller
    loops = (f"-XX:CompileCommand=dontinline,Bias::{name}" for name in ("counted", "polled"))
    apart = ("-XX:CompileCommand=quiet", *loops)
    command = (need("java"), "-XX:+UseSerialGC", *apart, "-cp", str(tmp_path), "Bias")
    with running(*command, stdin=subprocess.PIPE) as process:
        while sum(ask(process)[:2]) < 1e9:
            time.sleep(0.1)
        before = ask(process)
        found = record(process.pid, tmp_path, rate=999, until=lambda found: found.samples > 1000)
        after = ask(process)
    counted, polled, *_ = (end - begin for begin, end in zip(before, after, strict=True))
    leaves = [(stack[-1].partition(" / ")[0], count) for stack, count in found.stacks.items()]
    ours = {name: sum(count for leaf, count in leaves if leaf == f"Bias.{name}") for name in ("counted", "polled")}
    samples, share = sum(ours.values()), counted / (counted + polled)
    assert samples > 100, leaves
    margin = share_margin(share, samples // SAMPLES_OF_A_PHASE)
    assert abs(ours["counted"] / samples - share) < margin, (ours, before, after, leaves)


def ask(process: subprocess.Popen[str]) -> tuple[int, ...]:
    """Return the program's counters: nanoseconds in each loop, and how often a stack trace has found each."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return tuple(map(int, process.stdout.readline().split()))
