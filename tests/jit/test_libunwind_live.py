"""Registrations that come and go while a process is recorded."""

from __future__ import annotations

from pathlib import Path

from tests import warm
from tests.jit.programs_built import dyn
from tests.live.support.recording import record, running


def test_registration_and_cancellation_in_a_loop_are_seen_while_recorded(tmp_path: Path) -> None:
    """Two functions take turns at one address: with the other one's rules hardly a stack would reach main."""
    with running(dyn(tmp_path, "offset"), "loop", "200") as program:  # ms, more than a busy machine is late
        recording = record(program.pid, tmp_path, until=lambda recording: recording.samples > 100)
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
        assert whole[name] > 0.8 * turns[name], recording.stacks


def test_windows_of_a_recording_each_have_the_names_of_their_time(tmp_path: Path) -> None:
    """What no stack refers to any more is dropped between two windows; what one still does is not."""
    with running(dyn(tmp_path, "offset"), "loop", "40") as program:
        options = ("-d", "3.5", "--every", "1", "-q", "-r", "199", "-o", str(tmp_path / "w%i.collapsed"))
        done = warm.run("record", "-p", str(program.pid), *options, timeout=90)
    assert done.returncode == 0, done.stderr
    windows = sorted(tmp_path.glob("w*.collapsed"))
    assert len(windows) >= 3
    for window in windows[:3]:
        text = window.read_text()
        assert "take_turns;even_turn" in text
        assert "take_turns;odd_turn" in text
        assert "[JIT code" not in text
