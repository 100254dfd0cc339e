"""A test that the signal trampoline has a name although its library does not export one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live.support.ladders import ladder
from tests.live.support.recording import LIFE, record, running

pytestmark = pytest.mark.system


def test_signal_trampoline_of_a_stripped_library_is_named(tmp_path: Path) -> None:
    with running(ladder("ladder_altstack"), "spin", LIFE) as program:
        recording = record(program.pid, tmp_path, seconds=0.6)
    before = {stack[-3] for stack in recording.stacks if stack[-2:] == ("handler", "handler_top")}
    assert before <= {"<signal handler called>", "__restore_rt"}
    assert before
