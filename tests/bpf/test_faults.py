"""Tests of copies of stacks whose pages are not in memory: the copy is marked, and no frame is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.live.support import recording as native
from tests.support import PROGRAMS, build, pairs

pytestmark = pytest.mark.system

LADDER = [*(f"rung_{n:02}" for n in range(1, 21)), "top"]
ENOUGH = 30


def of_ladder(found: native.Recording) -> dict[tuple[str, ...], int]:
    return {stack: n for stack, n in found.stacks.items() if stack[-1] == "top"}


def cut(found: native.Recording) -> int:
    return sum(n for stack, n in of_ladder(found).items() if stack[0].startswith("["))


@pytest.mark.parametrize(("how", "collector"), pairs(["protect", "drop", "move"], ["bpf", "perf"]))
def test_stack_whose_pages_come_and_go_has_right_frames_or_a_mark(how: str, collector: str, tmp_path: Path) -> None:
    program = build(PROGRAMS / "c_faults.c", tmp_path / "faults", "-O1", "-pthread")

    def enough(found: native.Recording) -> bool:
        return cut(found) > ENOUGH and sum(of_ladder(found).values()) - cut(found) > ENOUGH

    with native.running(program, how) as target:
        found = native.record(target.pid, tmp_path, "--collector", collector, "-k", rate=997, until=enough)
        assert target.stdout is not None
        first = target.stdout.readline()
        assert target.poll() is None
        target.kill()
        taken, wrong, rounds = map(int, [first, *target.stdout.read().splitlines()][-1].split())
    assert enough(found)
    for stack in of_ladder(found):
        inner = [name for name in stack if not name.startswith("[")]
        if stack[0].startswith("["):
            assert inner == LADDER[-len(inner) :], stack
        else:
            assert inner[-len(LADDER) :] == LADDER, stack
            assert re.search("clone|start_thread", inner[0]), stack
    assert found.summary["stops"]["count"] == 0  # -k never stops a thread, even if its stacks are incomplete
    assert found.summary["ends"]["unreadable"] >= cut(found)
    assert taken > 100
    assert rounds > 0
    assert wrong == 0, "the thread's own variables have changed"
