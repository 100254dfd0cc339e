"""Tests of sleeping threads that are read without a stop, below frames that need the frame pointer.

The programs report their own callers (tests/programs/known_sleepers.c). Their calls leave stale frame records of
earlier calls in the frames of later ones.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from pyprof.model.sample_batch import SampleKind
from pyprof.model.unwind_result import StackEnd
from pyprof.objfile.mapped_object_files import ImageStore
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.unwind.unwinder import Unwinder
from tests.collectors.targets import record, wait_asleep
from tests.live.support.ladders import folder
from tests.support import PROGRAMS, build, need

pytestmark = [pytest.mark.live, pytest.mark.matrix, pytest.mark.system]

CALLS = ("epoll_wait", "epoll_pwait", "recv", "recvmsg", "accept", "semop", "sigwaitinfo", "read", "poll", "select",
         "nanosleep", "cond_wait", "msgrcv", "pause")  # fmt: skip
FRAME_POINTER = ("-O2", "-fno-omit-frame-pointer")
NO_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
BUILDS = {
    "O0": ("-O0",),
    "frame pointers": FRAME_POINTER,
    "alloca": (*FRAME_POINTER, "-DALLOCA"),
    "stripped without .eh_frame": (*FRAME_POINTER, *NO_TABLES),
    "libraries with frame pointers": (*FRAME_POINTER, "-DLIBRARY"),
}
FIXED_ROOM = [name for name in BUILDS if name != "alloca"]

MAX_INNER, MAX_OUTER = 4, 2
"""Maximum number of frames of the C library inside of the functions with known callers, and outside of them."""


@cache
def program(name: str) -> Path:
    output = folder() / f"known_sleepers_{list(BUILDS).index(name)}"
    flags = [*BUILDS[name], "-pthread"]
    if "-DLIBRARY" in flags:
        library = folder() / "libknown_sleepers.so"
        build(PROGRAMS / "known_sleepers_lib.c", library, *FRAME_POINTER, "-shared", "-fPIC")
        flags += ["-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{folder()}"]
    build(PROGRAMS / "known_sleepers.c", output, *flags)
    if "stripped" in name:
        for tool in (["strip"], ["objcopy", "-R", ".eh_frame", "-R", ".eh_frame_hdr"]):
            subprocess.run([need(tool[0]), *tool[1:], str(output)], check=True, timeout=60)
    return output


@dataclass(frozen=True)
class Sleeper:
    """A sleeping thread.

    Attributes:
        call: The system call in which it sleeps.
        pid: Its process.
        tid: Its thread id.
        callers: Return addresses of the known functions from leaf to root.
    """

    call: str
    pid: int
    tid: int
    callers: list[int]


@contextmanager
def sleepers(path: Path, calls: tuple[str, ...]) -> Iterator[tuple[int, list[Sleeper]]]:
    """Yield the pid of the parent process and all sleepers."""
    process = subprocess.Popen([path, *calls], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = []
        while (line := process.stdout.readline()) != "ready\n":
            call, pid, tid, *callers = line.split()
            found.append(Sleeper(call, int(pid), int(tid), [int(caller, 16) for caller in callers]))
        yield process.pid, found
    finally:
        process.communicate(timeout=30)


def judge(path: Path, calls: tuple[str, ...]) -> tuple[Counter[str], list[str]]:
    """Return the number of complete, truncated and wrong stacks, and those that are not complete."""
    unwinder = Unwinder(ImageStore(Diagnostics()), UnwindOptions(), Diagnostics())
    verdicts: Counter[str] = Counter()
    others = []
    with sleepers(path, calls) as (parent, all_of_them):
        wait_asleep(*{sleeper.pid for sleeper in all_of_them})
        stacks = stacks_from_outside(parent, {sleeper.tid for sleeper in all_of_them}, unwinder)
        for sleeper in all_of_them:
            verdict = verdict_on(sleeper.callers, *stacks[sleeper.tid])
            verdicts[verdict] += 1
            if verdict != "whole":
                pcs, end = stacks[sleeper.tid]
                others.append(f"{sleeper.call} {verdict} {end.label} {[hex(pc) for pc in pcs]}")
    assert verdicts.total() == 2 * len(calls)
    return verdicts, others


def stacks_from_outside(parent: int, tids: set[int], unwinder: Unwinder) -> dict[int, tuple[list[int], StackEnd]]:
    found = {}
    recording = record(
        parent,
        lambda recording: tids <= {lane.tid for lane in recording.lanes},
        idle=True,
        stop_sleepers=False,
        subprocesses=True,
    )
    assert not recording.of(SampleKind.STOPPED)
    for batch in {id(lane.batch): lane.batch for lane in recording.of(SampleKind.BLOCKED)}.values():
        walk = unwinder.walk(batch)
        for lane, tid in enumerate(batch.tid.tolist()):
            if batch.kind[lane] == SampleKind.BLOCKED:
                found[tid] = walk.pc[walk.start[lane] : walk.start[lane + 1]].tolist(), StackEnd(walk.end[lane])
    return found


def verdict_on(callers: list[int], pcs: list[int], end: StackEnd) -> str:
    first = pcs.index(callers[0]) if callers[0] in pcs else len(pcs)
    known = pcs[first : first + len(callers)]
    if first > MAX_INNER or known != callers[: len(known)] or len(pcs) - first - len(known) > MAX_OUTER:
        return "wrong"
    if end is StackEnd.ROOT:
        return "whole" if known == callers else "wrong"
    return "cut"


@pytest.mark.parametrize("name", BUILDS)
def test_sleepers_below_frames_with_frame_pointers_are_whole(name: str) -> None:
    verdicts, others = judge(program(name), CALLS)
    assert not verdicts["wrong"], others
    assert verdicts["whole"] >= 0.95 * verdicts.total(), others


@pytest.mark.parametrize("name", BUILDS)
def test_sleepers_called_through_a_pointer_are_never_wrong(name: str) -> None:
    verdicts, others = judge(program(name), tuple(f"*{call}" for call in CALLS))
    assert not verdicts["wrong"], others
    assert verdicts["whole"] >= 0.95 * verdicts.total() or name not in FIXED_ROOM, others
