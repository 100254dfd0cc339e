"""Tests of registrations that come and go while a process is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import warm
from tests.jit.programs_built import dyn
from tests.live.support.recording import Recording, record, running

pytestmark = [pytest.mark.live, pytest.mark.system]

TURN_MS = "150"
"""Processor time of a turn in milliseconds.

On a shared machine the sampler sees a registration tens of milliseconds later.
"""
SHORT_TURN_MS = "40"
"""Processor time of a turn in milliseconds, so that both functions run in each second of a tenth of a processor."""


def turns(recording: Recording) -> dict[str, tuple[int, int]]:
    """Return the number of samples of each of the two functions, and how many of them have complete stacks."""
    counts = {}
    for name in ("even_turn", "odd_turn"):
        inside = {stack: n for stack, n in recording.stacks.items() if stack[-3:-1] == (name, "call_next")}
        whole = [n for stack, n in inside.items() if stack[0] == "_start" and stack[-4] == "take_turns"]
        counts[name] = sum(inside.values()), sum(whole)
    return counts


def are_whole(recording: Recording) -> bool:
    """Return True if most stacks are complete. The first ones may be truncated until the size of the copy is known."""
    return recording.samples > 100 and all(whole > 0.8 * count for count, whole in turns(recording).values())


def test_registration_and_cancellation_in_a_loop_are_seen_while_recorded(tmp_path: Path) -> None:
    """Alternate two functions at one address. With the other one's rules hardly any stack would reach main."""
    with running(dyn(tmp_path, "offset"), "loop", TURN_MS) as program:
        recording = record(program.pid, tmp_path, until=are_whole)
    assert are_whole(recording), recording.stacks
    assert min(count for count, _ in turns(recording).values()) > 0.2 * recording.samples


def test_windows_of_a_recording_each_have_the_names_of_their_time(tmp_path: Path) -> None:
    """Record several windows, between which unused descriptions are dropped and used ones stay."""
    with running(dyn(tmp_path, "offset"), "loop", SHORT_TURN_MS) as program:
        for every_s in (1, 2, 4, 8):  # until the program ran in each window
            options = ("-d", str(4.5 * every_s), "--every", str(every_s), "-q", "-r", "199")
            output = tmp_path / f"{every_s}-%i.collapsed"
            done = warm.run("record", "-p", str(program.pid), *options, "-o", str(output), timeout=90)
            assert done.returncode == 0, done.stderr
            windows = [path.read_text() for path in sorted(tmp_path.glob(f"{every_s}-*.collapsed"))]
            later = windows[1:4]  # all stacks of the first window may be truncated, see are_whole()
            assert not any("[JIT code" in window for window in later)
            if len(windows) >= 4 and all(
                f"take_turns;{name}_turn" in text for name in ("even", "odd") for text in later
            ):
                break
    assert len(windows) >= 4
    for window in later:
        assert "take_turns;even_turn" in window
        assert "take_turns;odd_turn" in window
