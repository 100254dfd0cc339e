"""The session: nothing that was recorded is lost, whatever happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyprof.collectors.ptrace.collector import PtraceCollector
from pyprof.diagnostics import Diagnostics
from pyprof.model.sample import SampleBatch
from pyprof.options import CollectOptions, UnwindOptions
from pyprof.session.session import Session
from tests.cli.support import BUSY, pyprof, python


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
        window = session.run(lambda: None)
        assert target.poll() is None
        assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()
    assert isinstance(session.failure, ZeroDivisionError)
    assert len(window.node) > 20


def test_early_end_is_told_and_the_profile_written(tmp_path: Path) -> None:
    """A sitecustomize breaks the walker after a while, as a bug of ours would."""
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
    assert out.read_text().startswith("_start;")
