"""Tests of dumps with missing or duplicate thread ids."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

from pyprof.collectors.postmortem.crash_dump_process import DumpedProcess, _with_ids_of_their_own
from pyprof.objfile.byte_source import BytesSource
from pyprof.objfile.core_file import SavedMemory
from pyprof.objfile.minidump_content import CrashDump, DumpThread
from pyprof.problem_counters import Diagnostics
from tests.minidump.writer import MinidumpWriter


def ids(*tids: int) -> tuple[list[int], int]:
    """Return the ids that threads receive, and how many of them had no unique id."""
    dump = CrashDump("linux", "amd64", SavedMemory(BytesSource(b""), []))
    found = _with_ids_of_their_own([DumpThread(tid, {}) for tid in tids], dump)
    return list(found), dump.oddities["thread_without_id"]


def test_threads_without_an_id_get_the_lowest_free_ones() -> None:
    assert ids(7, 7, 0, 2, 1 << 31, 9) == ([7, 1, 2, 3, 4, 9], 4)


def test_repeated_thread_id_in_a_minidump_is_counted(tmp_path: Path) -> None:
    written = MinidumpWriter("amd64", "linux")
    for _ in range(2):
        written.thread(7, {"rsp": 0x7000}, 0x7000, bytes(64))
    (tmp_path / "a.dmp").write_bytes(written.build())
    diagnostics = Diagnostics()
    process = DumpedProcess(str(tmp_path / "a.dmp"), "", "", 1 << 16, diagnostics)
    assert [info.tid for info in process.saved.threads()] == [7, 1]
    (batch,) = process.saved.batches()
    assert len(batch) == 2
    assert diagnostics.counts["thread_without_id"] == 1


def test_work_of_giving_ids_grows_with_the_threads_not_with_their_square() -> None:
    count, steps, before = 2000, 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        return trace

    sys.settrace(trace)
    try:
        found, _ = ids(*[0] * count)
    finally:
        sys.settrace(before)
    assert found == list(range(1, count + 1))
    assert steps < 40 * count
