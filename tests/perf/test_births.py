"""Tests of threads and processes that live for milliseconds.

Samples are in proportion, or unsampled time is reported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyprof.collectors.linux.process_cpu_times import read_process_ns
from pyprof.collectors.perf.event_attributes import PerfNotAllowed, choose_event, paranoid_level
from pyprof.collectors.perf.per_thread_events import EVERY_THREAD
from pyprof.options import CollectOptions
from tests.chance import share_margin
from tests.live.support.recording import Recording, record, running
from tests.support import PROGRAMS, build, missing

pytestmark = [pytest.mark.live, pytest.mark.system]

POINTS = 0.03


@pytest.fixture(scope="module")
def births(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(PROGRAMS / "c_births.c", tmp_path_factory.mktemp("births") / "c_births", "-O1", "-pthread")


def share(recording: Recording, name: str) -> float:
    """Return the share of samples whose stack contains a function."""
    found = sum(n for stack, n in recording.stacks.items() if name in stack)
    return found / sum(recording.stacks.values())


def has_enough(recording: Recording) -> bool:
    """Return True if there are enough samples for their shares to mean something."""
    return recording.samples > 100


@pytest.mark.parametrize(("what", "microseconds"), [("thread", "500"), ("thread", "5000"), ("process", "2000")])
def test_short_lives_have_their_share_of_the_samples(
    what: str, microseconds: str, births: Path, tmp_path: Path
) -> None:
    with running(births, what, microseconds, "4", stdin=subprocess.PIPE) as program:
        try:
            choose_event(EVERY_THREAD, 0, CollectOptions())
        except PerfNotAllowed as error:
            missing(f"needs perf_events of processors: {error.message} {error.hint}")
        options = ("--collector", "perf", "-s", "--stack-size", "8K")
        recording = record(program.pid, tmp_path, *options, seconds=1.2, rate=499, until=has_enough)
        in_busy, spent = map(int, program.communicate()[0].split())
    assert has_enough(recording)
    true = in_busy / spent
    assert share(recording, "busy") == pytest.approx(true, abs=POINTS + share_margin(true, recording.samples))
    assert "unknown_process_sample" not in recording.summary["errors"]


OWNER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups") if os.geteuid() == 0 else ()
"""A command prefix that runs as a user without permission for events on processors."""


@pytest.fixture
def open_folder(births: Path) -> Iterator[Path]:
    """Yield a folder with the program in which every user may write."""
    folder = Path(tempfile.mkdtemp(prefix="pyprof-births-"))
    folder.chmod(0o777)
    shutil.copy(births, folder / "births")
    yield folder
    shutil.rmtree(folder)


def test_time_that_no_sample_stands_for_is_marked_and_told(open_folder: Path) -> None:
    if (paranoid_level() or 3) > 2:
        missing("needs perf_events of own threads: kernel.perf_event_paranoid of 2 or less")
    with running(*OWNER, open_folder / "births", "thread", "1000", "3", stdin=subprocess.PIPE) as program:
        before = read_process_ns(program.pid)
        recording = record(
            program.pid, open_folder, "--collector", "perf", seconds=2, rate=199, by=OWNER, until=has_enough
        )
        spent_s = (read_process_ns(program.pid) - before) / 1e9
        program.communicate()
    processor = recording.summary["processor"]
    total, blocks = sum(recording.stacks.values()), {stack[0]: count for stack, count in recording.unseen.items()}
    seen_by = {"too short to see", "in the kernel", "records lost"}  # records are lost on a busy machine
    assert blocks.keys() <= {f"[not sampled: {why}]" for why in seen_by}
    block = sum(blocks.values())
    assert 0.1 < processor["spent_s"] < spent_s
    whole_samples = (1 + len(blocks)) / 199  # marked and sampled time are rounded to samples
    assert (total + block) / 199 + processor["late_s"] == pytest.approx(
        processor["spent_s"], abs=processor["spent_s"] * POINTS + whole_samples
    )
    assert total == recording.samples
    assert block / 199 == pytest.approx(processor["not_sampled_s"], abs=1 / 199 * len(blocks))
    assert block / 199 > processor["not_sampled_s"] * (1 - POINTS) > 0
    assert blocks.get("[not sampled: in the kernel]", 0) / 199 == pytest.approx(processor["kernel_s"], abs=1 / 199)
    # each thread starts a new period: at the plain rate nearly nothing would be sampled
    assert blocks.get("[not sampled: too short to see]", 0) < total
    assert any(note["text"].startswith("Not sampled: ") for note in recording.summary["notes"])
