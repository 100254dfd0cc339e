"""Tests of `-s`: children of a process, created in various ways, have Python frames."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from tests.collapsed import Stacks
from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import HERE, Python, pythons, running
from tests.interpreters.runs import record, stacks
from tests.interpreters.test_peers_real import asking, free_port
from tests.interpreters.test_peers_real import running as running_here

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

NEWEST = pythons()[-1]


def workers(found: Stacks) -> set[str]:
    """Return the process frames whose stacks do the program's work."""
    return {frames[0] for frames, _ in found if "crunch (pool.py)" in frames}


@pytest.mark.parametrize(
    ("python", "method"),
    [(HERE, "fork"), (HERE, "spawn"), (NEWEST, "forkserver")],
    ids=lambda value: getattr(value, "name", value),
)
def test_workers_of_multiprocessing_are_in_the_profile(python: Python, method: str, tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    with running(python, "pool.py", method) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        record(process.pid, output, "-s", "--threads", until=lambda found: len(workers(found)) >= 2)
    found = stacks(output)
    for frames, _ in found:
        assert not any("merge: partial" in frame for frame in frames), frames
        if "crunch (pool.py)" in frames:
            assert "worker (pool.py)" in frames[: frames.index("crunch (pool.py)")]
    assert len(workers(found)) >= 2
    assert all(re.fullmatch(r".+ \(pid \d+\)", name) for name in workers(found))
    assert not any(name.endswith(f"(pid {process.pid})") for name in workers(found))


def test_workers_of_gunicorn_are_in_the_profile(tmp_path: Path) -> None:
    output = tmp_path / "out.collapsed"
    port = free_port()
    command = ("-m", "gunicorn", "-k", "gthread", "-w", "2", "-t", "1000", "-b", f"127.0.0.1:{port}", "wsgi:wsgi")
    with (
        running_here(
            *command, env={"PYTHONPATH": str(from_pypi(sys.version_info[1], "gunicorn", "uvicorn", "pystack"))}
        ) as process,
        asking(port),
    ):
        deadline = time.monotonic() + 60
        while len(process.children()) < 2:
            assert time.monotonic() < deadline
        pids = {f"(pid {child.pid})" for child in process.children()}

        def is_complete(found: Stacks) -> bool:
            """Return True if both workers run and one of them handles a request."""
            started = {frames[0] for frames, _ in found if "Worker.init_process (base.py)" in frames}
            handled = any("handle (wsgi.py)" in frames and "run_wsgi" not in frames[0] for frames, _ in found)
            return handled and all(any(root.endswith(pid) for root in started) for pid in pids)

        record(process.pid, output, "-s", "-i", "--threads", until=is_complete)
    assert is_complete(stacks(output))
