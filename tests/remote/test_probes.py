"""Tests of boards behind servers that behave like those of OpenOCD and J-Link."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remote.probes import JLINK, OPENOCD, Manner, probe
from tests.remote.programs import bare
from tests.remote.runs import dump, names, on_the_ladder, record
from tests.remote.stubs import qemu_system_arm
from tests.session.test_worker import until

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

MANNERS = [pytest.param(OPENOCD, id="openocd"), pytest.param(JLINK, id="jlink")]


@pytest.mark.parametrize("manner", MANNERS)
def test_board_is_sampled_while_it_runs_and_runs_on_afterwards(manner: Manner, tmp_path: Path) -> None:
    with qemu_system_arm(bare()) as address, probe(address, manner) as server:
        recorded = record(server.address, tmp_path, "--exe", str(bare()), "-r", "50", seconds=3)
        assert recorded.summary["samples"] > 1
        wrong = {stack: n for stack, n in recorded.stacks.items() if stack[0] != "reset" or not on_the_ladder(stack)}
        assert not wrong
        assert recorded.summary["ends"] == {"root": recorded.summary["samples"]}
        assert server.running
        assert server.resumed >= recorded.summary["samples"]


@pytest.mark.parametrize("manner", MANNERS)
def test_dump_of_a_board_lets_it_run_on(manner: Manner) -> None:
    with qemu_system_arm(bare()) as address, probe(address, manner) as server:
        resumed = climbed = 0
        while climbed < 2:
            (thread,) = dump(server.address, "--exe", str(bare()))["threads"]
            resumed += 1
            until(lambda: server.running)
            assert server.resumed == resumed
            assert names(thread)[0] == "reset"
            if len(names(thread)) > 1:  # otherwise the board has just begun
                assert on_the_ladder(names(thread)), thread
                climbed += 1
