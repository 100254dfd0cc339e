"""Registrations that come and go while a process is recorded."""

from __future__ import annotations

from pathlib import Path

from tests.jit.programs_built import dyn
from tests.live.support.recording import record, running


def test_registration_and_cancellation_in_a_loop_are_seen_while_recorded(tmp_path: Path) -> None:
    """Two functions take turns at one address: with the other one's rules hardly a stack would reach main."""
    with running(dyn(tmp_path, "offset"), "loop", "40") as program:
        recording = record(program.pid, tmp_path, seconds=3)
    turns = {
        name: sum(n for stack, n in recording.stacks.items() if stack[-3:-1] == (name, "call_next"))
        for name in ("even_turn", "odd_turn")
    }
    whole = {
        name: sum(
            n
            for stack, n in recording.stacks.items()
            if stack[-4:-1] == ("take_turns", name, "call_next") and stack[0] == "_start"
        )
        for name in turns
    }
    assert recording.samples > 100
    assert min(turns.values()) > 0.2 * recording.samples
    for name in turns:
        assert whole[name] > 0.9 * turns[name], recording.stacks
