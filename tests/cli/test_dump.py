"""Tests of `pyprof dump`: text, JSON and exit codes."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import BUSY, SLEEPY, pyprof, python

pytestmark = [pytest.mark.live, pytest.mark.system]

FRAME_KEYS = {"kind", "pc", "module", "build_id", "rel", "function", "offset", "file", "line", "inlined", "trust"}
THREADS = """
import threading, time
for n in range(9):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print(flush=True)
time.sleep(600)
"""


def test_json_has_the_stable_shape_innermost_first() -> None:
    with python(SLEEPY) as target:
        done = pyprof("dump", "-p", str(target.pid), "--json", "--native", "all")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert set(document) == {"pid", "exe", "arch", "unread", "threads"}
    assert (document["pid"], document["arch"]) == (target.pid, "x86_64")
    (thread,) = document["threads"]
    assert set(thread) == {"tid", "name", "state", "end", "interpreter", "frames"}
    assert (thread["state"], thread["end"]) == ("sleeping", "root")
    assert all(set(frame) - {"source"} == FRAME_KEYS for frame in thread["frames"])
    assert thread["frames"][0]["trust"] == "context"
    assert thread["frames"][-1]["function"] == "_start"
    assert thread["frames"][0]["module"].endswith("libc.so.6")


def test_all_threads_are_whole_and_none_was_stopped() -> None:
    with python(THREADS) as target:
        done = pyprof("dump", "-p", str(target.pid), "--json")
        threads = json.loads(done.stdout)["threads"]
    assert done.returncode == 0
    assert len(threads) == 10
    assert {thread["end"] for thread in threads} == {"root"}


def test_stack_cut_short_is_said_and_returned() -> None:
    with python(SLEEPY) as target:
        done = pyprof("dump", "-p", str(target.pid), "--max-depth", "3")
    assert done.returncode == 3
    assert "[cut short: maximum depth]" in done.stdout


def test_text_names_thread_state_and_how_each_frame_was_found() -> None:
    with python(SLEEPY) as target:
        done = pyprof("dump", "-p", str(target.pid))
    assert f"thread {target.pid} " in done.stdout
    assert "sleeping" in done.stdout
    assert "[eh_frame]" in done.stdout


def test_thread_whose_stop_is_late_has_its_name() -> None:
    """Dump on a busy machine, where the first stop of a running thread comes after its sampling time."""
    with python(BUSY) as target, python(BUSY), python(BUSY):
        with open(f"/proc/{target.pid}/comm") as file:
            name = file.read().strip()
        for _ in range(3):
            done = pyprof("dump", "-p", str(target.pid), "--json")
            assert [thread["name"] for thread in json.loads(done.stdout)["threads"]] == [name]
