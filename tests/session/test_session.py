"""Tests of the session: nothing recorded is lost, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyprof.collectors.base import CollectorStats
from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.model.address_space import AddressSpace, ProgramImage
from pyprof.model.profile import ThreadInfo
from pyprof.model.sample_batch import SampleBatch
from pyprof.options import CollectOptions, UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.session import Session
from tests.cli.support import BUSY, pyprof, python
from tests.collapsed import sampled

pytestmark = [pytest.mark.live, pytest.mark.system]


class Silent:
    """A collector without samples."""

    def batches(self) -> Iterator[SampleBatch]:
        return iter(())

    def learn(self, feedback: object) -> None: ...

    def retire(self) -> None: ...

    def threads(self) -> list[ThreadInfo]:
        return []

    def stats(self) -> CollectorStats:
        return CollectorStats()

    def stop(self) -> None: ...

    def close(self) -> None: ...


def test_error_in_the_walk_ends_the_recording_and_keeps_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnostics = Diagnostics()
    with python(BUSY) as target:
        collector = PtraceCollector(target.pid, CollectOptions(rate_hz=200, flush_s=0.05), diagnostics)
        session = Session(collector, UnwindOptions(), diagnostics)
        walk = session.unwinder.walk

        def breaks_later(batch: SampleBatch) -> object:
            if session.recorder.samples > 20:
                raise ZeroDivisionError("a bug")
            return walk(batch)

        monkeypatch.setattr(session.unwinder, "walk", breaks_later)
        window = session.run(collector)
        assert target.poll() is None
        assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()
    assert isinstance(session.failure, ZeroDivisionError)
    assert len(window.node) > 20


def test_early_end_is_told_and_the_profile_written(tmp_path: Path) -> None:
    """Break the walker after a while through a sitecustomize module, as a bug would."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'record' in sys.argv:\n"
        "    from pyprof.unwind.unwinder import Unwinder\n"
        "    walk, calls = Unwinder.walk, []\n"
        "    def broken(self, batch):\n"
        "        calls.append(1)\n"
        "        if len(calls) > 3: raise ZeroDivisionError('a bug')\n"
        "        return walk(self, batch)\n"
        "    Unwinder.walk = broken\n"
    )
    out = tmp_path / "a.collapsed"
    with python(BUSY) as target:
        done = pyprof(
            *("record", "-p", str(target.pid), "-d", "20", "-o", str(out)),
            env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
        assert target.poll() is None
    assert done.returncode == 1
    assert "what was recorded is kept" in done.stderr
    assert sampled(out.read_text())[0][0][0] == "_start"


def test_names_found_below_the_root_of_an_ended_process_go_with_its_last_window() -> None:
    """Drop names of an ended process, because another process with another root may get its pid."""
    session = Session(Silent(), UnwindOptions(), Diagnostics())
    spaces = {
        number: AddressSpace(
            number, 40 + number, 0, (), lambda avma, size: b"", f"/proc/{40 + number}/root", image=image
        )
        for number, image in enumerate((ProgramImage(alive=False), ProgramImage()))
    }
    for space in spaces.values():
        session.files.names.packages(space.root)
    session.retire(replace(session.recorder.cut(), spaces=spaces))
    assert len(session.files.names) == 1
    session.files.names.retire({"/proc/41/root"})
    assert len(session.files.names) == 0
