"""Tests that stacks of makecontext(3) coroutines are complete."""

from __future__ import annotations

import pytest

from tests.live.support import recording as native
from tests.live.support.ladders import ladder

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]


@pytest.mark.parametrize("collector", ["perf", "ptrace"])
def test_coroutines_of_makecontext_are_whole(collector: str) -> None:
    with native.running(ladder("ladder_contexts"), "spin", native.LIFE) as program:
        profile = native.watched(
            program.pid, lambda profile: profile.summary.samples > 60, collector=collector, rate=199
        )
    found = native.names(profile)
    inside = [path for path in found if "coroutine" in path]
    assert len(inside) > 40
    assert all(path[-3:] == ("coroutine", "step", "work") for path in inside if path[-1] == "work"), found
    assert profile.summary.ends == {"root": profile.summary.samples}
