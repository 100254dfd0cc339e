"""Tests of the rights with which a snapshot of all threads reads files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyprof.options import DumpOptions
from pyprof.session.thread_dump import of_process
from pyprof.session.worker.worker_process import Worker, spawned
from tests.live.support.recording import running

pytestmark = pytest.mark.live

GAINS_RIGHTS = """
import os, sys, time
def wait_for_the_end():
    sys.stdin.readline()  # a line that only root may read
os.seteuid(65534)
print("ready", flush=True)
sys.stdin.readline()
os.seteuid(0)
print("gained", flush=True)
wait_for_the_end()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read what its target cannot")
def test_source_file_is_read_by_the_rights_before_the_stacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GAINS_RIGHTS)
    with running(sys.executable, script, stdin=subprocess.PIPE) as target:

        def gain_rights_and_start(confined: bool = True) -> Worker:
            assert target.stdin is not None
            assert target.stdout is not None
            target.stdin.write("\n")
            target.stdin.flush()
            assert target.stdout.readline() == "gained\n"
            return spawned(confined)

        options = DumpOptions()
        lines: list[list[str]] = []
        for start in gain_rights_and_start, spawned:
            (thread,) = of_process(target.pid, options, start)
            lines.append([detail.source for detail in thread.details])
    assert lines == [["", ""], ["sys.stdin.readline()  # a line that only root may read", "wait_for_the_end()"]]
