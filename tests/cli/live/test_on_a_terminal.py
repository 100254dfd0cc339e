"""Tests of `pyprof top` on real processes: its output for scripts and on a terminal of 80 by 24."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.cli.live.on_a_terminal import LEFT, driven
from tests.cli.support import BUSY, SLEEPY, pyprof, python

pytestmark = [pytest.mark.live, pytest.mark.system]


def test_once_prints_one_table_for_scripts(tmp_path: Path) -> None:
    with python(BUSY) as target:
        kept = ("-o", str(tmp_path / "seen.txt"))
        done = pyprof("top", "-p", str(target.pid), "--once", "--interval", "0.5", "--by", "thread", *kept)
    assert done.returncode == 0, done.stderr
    assert "saved " in done.stderr
    assert ";" in (tmp_path / "seen.txt").read_text()
    title, empty, heading, *found = done.stdout.splitlines()
    assert f"({target.pid}): " in title
    assert " processors, " in title
    assert not empty
    assert heading.split() == ["▼self", "total", "thread", "tid", "process"]
    assert [row.split()[-2] for row in found] == [str(target.pid)]


def test_once_fails_where_nothing_runs() -> None:
    with python(SLEEPY) as target:
        done = pyprof("top", "-p", str(target.pid), "--once", "--interval", "0.3")
    assert done.returncode == 1
    assert "nothing was sampled" in done.stderr
    assert "--mode wall" in done.stderr


def test_keys_resize_stop_and_quit_on_a_terminal_that_is_restored(tmp_path: Path) -> None:
    with python(BUSY) as target, driven("top", "-p", str(target.pid), "--interval", "0.3") as top:
        before = top.modes()
        top.until(" processors, ")
        assert top.modes() != before
        top.press("2")
        top.until("by thread")
        top.resize(50, 12)
        top.until(b"\x1b[2J")  # the whole screen is redrawn
        top.press("\x1a")
        top.until(LEFT)
        top.stopped()
        assert top.modes() == before
        top.process.send_signal(signal.SIGCONT)
        top.until("by thread")
        top.press("1\r")
        top.until("who calls ")
        top.press(f"w{tmp_path}/seen.pyprof\r")
        top.until("saved ")
        top.press("m")
        top.until("wall, ")
        top.until(" threads, ")
        top.press("q")
        top.until(LEFT)
        assert top.ended() == 0
        assert top.modes() == before
        assert target.poll() is None
    assert pyprof("report", str(tmp_path / "seen.pyprof")).stdout.count("%") > 1


def test_signal_ends_it_and_the_terminal_is_restored_and_what_was_seen_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "seen.txt"
    with python(BUSY) as target, driven("top", "-p", str(target.pid), "--interval", "0.3", "-o", str(kept)) as top:
        before = top.modes()
        top.until("<module>")  # a sample has been shown
        top.process.terminate()
        top.until(LEFT)
        assert top.ended() == 0
        assert top.modes() == before
    assert ";" in kept.read_text()


def test_output_of_a_command_comes_when_the_picture_is_gone_and_its_end_is_shown() -> None:
    program = "print('from the command', flush=True)\nfor _ in range(300): sum(range(10000))"
    with driven("top", "--interval", "0.2", "--", sys.executable, "-c", program) as top:
        picture = top.until("the target has ended")
        assert b"from the command" not in picture
        top.press("q")
        top.until(LEFT)
        if b"from the command" not in top.said:
            top.until(b"from the command")
        assert top.ended() == 0
