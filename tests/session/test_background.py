"""Jobs in children: how they end is known, and what they die of is seen."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from pyprof.session.background import Background


def test_jobs_that_fail_are_counted() -> None:
    background = Background()
    for code in (0, 1, 0, 3):
        background.start(partial(int, code))
    assert background.wait() == 2


def test_job_that_raises_fails_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    def job() -> int:
        raise ValueError("no such column")

    background = Background()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "excepthook", sys.__excepthook__)
        background.start(job)
    assert background.wait() == 1
    assert "no such column" in capfd.readouterr().err
