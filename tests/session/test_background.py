"""Jobs in children: what they return and raise comes back, and none is left."""

from __future__ import annotations

import os
import signal
import time
from functools import partial

import pytest

from pyprof.errors import FormatError, OutputError
from pyprof.session import background
from pyprof.session.background import JobDied


def test_result_comes_back_however_long() -> None:
    jobs = [background.start(partial(bytes, n)) for n in (0, 1 << 22)]
    assert [len(job.result()) for job in jobs] == [0, 1 << 22]


@pytest.mark.parametrize("error", [OutputError("disk full", "rm"), FormatError(".eh_frame", 16, "no CIE")])
def test_named_condition_comes_back_as_it_was(error: Exception) -> None:
    def job() -> None:
        raise error

    with pytest.raises(type(error)) as found:
        background.start(job).result()
    assert found.value.args == error.args
    assert vars(found.value) == vars(error)


def test_what_nobody_foresaw_comes_back_with_its_traceback() -> None:
    def job() -> None:
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column") as found:
        background.start(job).result()
    assert "in job" in found.value.__notes__[0]


def test_job_that_is_killed_is_told() -> None:
    with pytest.raises(JobDied):
        background.start(partial(signal.raise_signal, signal.SIGKILL)).result()


def test_abandoned_job_leaves_no_child_and_no_descriptor() -> None:
    before = os.listdir("/proc/self/fd")
    job = background.start(partial(time.sleep, 60))
    job.abandon()
    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(ChildProcessError):
        os.waitpid(job._child, 0)
