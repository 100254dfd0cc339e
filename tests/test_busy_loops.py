"""A test of the busy loops with which tests load the machine."""

from __future__ import annotations

import os

import psutil

from tests.support import busy_loops


def test_busy_loops_run_inside_the_block_and_end_with_it() -> None:
    own = psutil.Process()
    before = {child.pid for child in own.children()}
    with busy_loops(2):
        loops = [child for child in own.children() if child.pid not in before]
        assert len(loops) == 2
        assert all(os.getsid(loop.pid) == loop.pid for loop in loops)
    assert not any(loop.is_running() for loop in loops)
