"""Tests of the BPF program on CPython core files.

Its frames equal those of the program's own log and of a ptrace stop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from shutil import copytree

import pytest

from pyprof.collectors.bpf.ring_buffer_records import MOST_STACK, Flag, LossReason
from pyprof.interpreters.cpython.bpf_frame_decoder import MAX_ROWS
from pyprof.model.interpreter_frames import Chain, FunctionPlace, SampleState
from tests.bpf.saved_process import SavedProcess, core_of
from tests.bpf.user_space import MOST_RUN_NS, RED_ZONE, STACK_BEGINNING, Ran, counted
from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import EACH, KINDS, Python, pythons, running
from tests.roots import root
from tests.support import name_of, pairs

pytestmark = [pytest.mark.matrix, pytest.mark.system]

ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
"""Environment with one malloc arena, because glibc reserves 64 MB for each further arena."""
MAX_LATE = 1000
"""Maximum number of helper calls and loop iterations after the time limit, on valid memory."""


NAPS = (23, 35, 230, 270)
"""Numbers of select, nanosleep, clock_nanosleep and pselect6 on x86-64."""
MAX_OF_SHALLOW = 64 << 10
"""Maximum size in bytes of a shallow thread's stack copy, which excludes neighbouring stacks."""
SLEEPS = 1
"""TASK_INTERRUPTIBLE, the kernel's state of a thread in an interruptible sleep."""
BUSY_NS = 30_000_000
EVALUATOR_BYTES = 0xC0
"""Distance in bytes from the CFrame of an evaluator to the end of its entry frame (CPython 3.12)."""
MAX_CORES = 20
"""Maximum number of core files of a program until one shows it in the wanted state."""


def of_threads(pid: int, file: str) -> list[str]:
    """Return the first word of a /proc file of each thread."""
    return [(task / file).read_text().split()[0] for task in sorted(Path(f"/proc/{pid}/task").iterdir())]


def naps(pid: int) -> bool:
    """Return True if a thread is in time.sleep()."""
    return any(call.isdecimal() and int(call) in NAPS for call in of_threads(pid, "syscall"))


def busy(threads: int) -> Callable[[int], bool]:
    """Return a function that tells whether this many threads exist and each has run for BUSY_NS since then."""
    before: list[int] = []

    def are_busy(pid: int) -> bool:
        run_ns = [int(word) for word in of_threads(pid, "schedstat")]
        if len(run_ns) != threads:
            return False
        before[:] = before or run_ns
        return min(now - then for now, then in zip(run_ns, before, strict=True)) > BUSY_NS

    return are_busy


@contextmanager
def saved(
    python: Python, folder: Path, until: Callable[[int], bool], program: str, *arguments: str
) -> Iterator[tuple[SavedProcess, str]]:
    """Run a program until the condition holds, and yield its core and its first line of output.

    The folder is on the program's module path.
    """
    with running(python, program, *arguments, env={**ONE_ARENA, "PYTHONPATH": str(folder)}, cwd=folder) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        end = time.monotonic() + 60
        while not until(process.pid):
            assert time.monotonic() < end
            time.sleep(0.01)
        core = core_of(process, folder)
    yield SavedProcess(core, str(root(python.suite)) if python.suite else ""), said
    core.unlink()


def frames_of(chain: Chain) -> list[FunctionPlace]:
    return [place for run in chain.runs for place in run.frames]


def functions(process: SavedProcess, chain: Chain) -> list[str]:
    """Return unqualified function names from root to leaf."""
    return [str(name).rpartition(".")[2] for name, _ in process.names(chain)][::-1]


def check_copy(process: SavedProcess, tid: int, ran: Ran) -> None:
    """Assert that registers, thread and stack of the record equal those of the core."""
    record = ran.record
    sp, stack = process.stack(tid)
    below = process.memory.read(sp - RED_ZONE, RED_ZONE)
    assert (record.pid[0], record.tid[0]) == (process.pid, tid)
    assert record.regs[0].tolist() == process.registers(tid)
    assert int(record.base[0]) == sp - len(below)
    assert ran.copies == (below + stack[:MOST_STACK], stack[MOST_STACK:][-STACK_BEGINNING:])
    assert bool(record.flags[0] & Flag.CUT) == (len(stack) > MOST_STACK)
    assert not record.holes[0]


def sampled(process: SavedProcess, placed: bool) -> dict[int, tuple[Ran, Chain]]:
    """Sample each thread twice and assert that the second sample, which uses the first one's results, is the same."""
    said = process.in_user_space(placed)
    for tid in process.tids * 2:
        process.sample(said, tid)
    samples, _ = said.run()
    found = {}
    for tid, first, again in zip(process.tids, samples, samples[len(process.tids) :], strict=False):
        one, other = (process.chain(each) for each in (first, again))
        assert one is not None
        assert other is not None
        assert (one.runs, one.state, one.problem) == (other.runs, other.state, other.problem)
        assert one.number == other.number > 0, "all of its code objects were read"
        found[tid] = first, one
    return found


def agree(process: SavedProcess) -> dict[int, Chain]:
    """Return the frames that a ptrace stop finds for each thread, and assert that the BPF program finds the same.

    The program runs with and without the addresses of the thread states.
    """
    stops: dict[int, Chain] = {}
    states = {place.tid: place.address for place in process.kernel.places()}
    for placed in (False, True):
        for tid, (ran, chain) in sampled(process, placed).items():
            stop = process.stop(tid)
            assert stop is not None
            assert ran.record.flags[0] & Flag.CHAIN
            assert int(ran.record.state[0]) == states[tid]
            assert chain.runs == stop.runs
            assert chain.state == (stop.state if placed else SampleState.INTERPRETED)
            assert (chain.problem, chain.marked, chain.others) == (stop.problem, stop.marked, stop.others)
            assert chain.marks == stop.marks
            check_copy(process, tid, ran)
            stops[tid] = stop
    assert stops
    return stops


@pytest.mark.parametrize(("python", "where"), pairs(pythons(), ["main", "thread"]), ids=name_of)
def test_frames_are_those_that_the_program_wrote_down_and_those_of_a_stop(
    python: Python, where: str, tmp_path: Path
) -> None:
    with saved(python, tmp_path, naps, "ladder.py", where) as (process, said):
        stack = json.loads(said)
        chains = agree(process)
    assert len(chains) == (1 if where == "main" else 2)
    assert stack in [process.names(chain) for chain in chains.values()]
    assert len(stack) > 500


@EACH
def test_frames_of_busy_threads_are_those_of_a_stop(python: Python, tmp_path: Path) -> None:
    with saved(python, tmp_path, busy(4), "calls.py", "3") as (process, said):
        callers = json.loads(said)
        chains = agree(process)
    assert len(chains) == 4
    for tid, chain in chains.items():
        assert len(process.stack(tid)[1]) < MAX_OF_SHALLOW
        names = functions(process, chain)
        assert "main" in names
        for caller, callee in pairwise(names[names.index("main") :]):
            assert caller in callers.get(callee, [caller]), names


@pytest.mark.parametrize("python", [p for p in pythons() if p.minor in (11, 12)], ids=lambda python: python.name)
def test_unlinked_cframe_below_untouched_pages_hides_no_frames(python: Python, tmp_path: Path) -> None:
    """Sample an evaluator below untouched pages: arch_align_stack leaves up to 8 KB between first calls and
    arguments.
    """
    for _ in range(MAX_CORES):
        with saved(python, tmp_path, busy(1), "calls.py") as (process, _):
            (tid,) = process.tids
            ran, _ = sampled(process, True)[tid]
            ((own, entered), *outside), (_, offsets) = ran.record.anchors.tolist(), process.offsets
            # CPython 3.12 has the entry frame of an evaluator behind its CFrame: both must be on one page
            if not outside or max(outside)[0] & 0xFFF > 0x1000 - EVALUATOR_BYTES:
                continue
            said = process.in_user_space(True, absent=(max(outside)[0] | 0xFFF) + 1)
            for address in (
                own + offsets.cframe_current,
                own + offsets.cframe_previous,
                entered + offsets.frame_height,
            ):
                said.poke(address, 8)
            process.sample(said, tid)
            (begins,), _ = said.run()
            break
    found, rows = begins.record, ran.record.frames.tolist()
    assert found.anchors[1:].tolist() == outside, (ran.record.anchors.tolist(), found.anchors.tolist())
    assert not found.flags[0] & Flag.BROKEN
    assert 0 < len(found.frames) < len(rows)
    assert found.frames.tolist() == rows[-len(found.frames) :]


@KINDS
def test_of_a_deep_recursion_the_innermost_frames_are_read_and_the_rest_is_marked(
    python: Python, tmp_path: Path
) -> None:
    with saved(python, tmp_path, busy(1), "deep.py", "3000") as (process, _):
        (tid,) = process.tids
        stop = process.stop(tid)
        ran, chain = sampled(process, True)[tid]
        assert stop is not None
        frames = frames_of(chain)
        assert ran.record.flags[0] & Flag.BROKEN
        assert len(ran.record.frames) == chain.lacking == MAX_ROWS
        assert MAX_ROWS - 1 <= len(frames) <= MAX_ROWS
        assert frames == frames_of(stop)[: len(frames)]
        assert chain.runs[:-1] == stop.runs[: len(chain.runs) - 1]
        check_copy(process, tid, ran)


@KINDS
def test_stack_below_a_handler_on_sigaltstack_is_copied_from_its_frames(python: Python, tmp_path: Path) -> None:
    with saved(python, tmp_path, naps, "altstack.py") as (process, said):
        (tid,) = process.tids
        ran, chain = sampled(process, True)[tid]
        stop, record = process.stop(tid), ran.record
        assert stop is not None
        assert frames_of(chain) == frames_of(stop)
        assert [name for name, _ in process.names(chain)] == json.loads(said)
        own, below = ran.copies
        base, at = int(record.base[0]), int(record.below_base[0])
        end = process.first_stack.end
        assert process.memory.read(base, len(own)) == own
        assert process.first_stack.start <= at < end
        assert process.memory.read(at, end - at) == below
        assert not process.first_stack.start <= base < end
        marks = [run.marker for run in chain.runs]
        if python.minor >= 10:
            assert base <= marks[0] < base + len(own)
            assert at <= marks[-1] < end


@pytest.mark.parametrize("python", [p for p in pythons() if p.minor >= 11], ids=lambda python: python.name)
def test_frames_of_two_interpreters_of_one_thread_are_those_of_a_stop(python: Python, tmp_path: Path) -> None:
    with saved(python, tmp_path, naps, "sub_interpreter.py") as (process, _):
        ((tid, chain),) = agree(process).items()
        assert len(process.process.thread_states(tid)) == 2
        names = functions(process, chain)
    assert names[-1] == "inside"
    assert names.count("<module>") == 2
    assert names.index("outside") < names.index("inside")


@KINDS
def test_greenlets_that_wait_on_a_stack_are_those_that_a_stop_finds(python: Python, tmp_path: Path) -> None:
    """Compare suspended greenlets. CPython up to 3.10 keeps none on the stack."""
    packages = from_pypi(python.minor, "greenlet", "gevent")
    copytree(packages / "greenlet", tmp_path / "greenlet")
    waiting = 0
    for _ in range(MAX_CORES):
        with saved(python, tmp_path, busy(1), "greenlets.py") as (process, said):
            callers = json.loads(said)
            (chain,) = agree(process).values()
            waiting += sum(run.waits for run in chain.runs)
            for caller, callee in pairwise(functions(process, chain)):
                assert caller in callers[callee], functions(process, chain)
        if waiting > 2 or python.minor < 11:
            break
    assert bool(waiting) == (python.minor >= 11)


@KINDS
def test_stack_with_which_a_wait_begins_is_that_of_a_stop(python: Python, tmp_path: Path) -> None:
    with saved(python, tmp_path, naps, "ladder.py") as (process, _):
        (tid,) = process.tids
        said = process.in_user_space(True)
        said.setting("pointer", process.pointers[tid])
        said.leave(process.pid, tid, process.registers(tid), SLEEPS)
        (ran,), _ = said.run()
        chain, stop = process.chain(ran), process.stop(tid)
        assert chain is not None
        assert stop is not None
        assert chain.runs == stop.runs
        assert ran.record.flags[0] & (Flag.WAITS | Flag.KERNEL) == Flag.WAITS | Flag.KERNEL
        assert int(ran.record.why[0]) == SLEEPS
        check_copy(process, tid, ran)


@KINDS
def test_sample_that_takes_too_long_has_its_innermost_frames(python: Python, tmp_path: Path) -> None:
    with saved(python, tmp_path, naps, "ladder.py") as (process, _):
        (tid,) = process.tids
        ((ran, whole),) = sampled(process, True).values()
        for times in (3, 5, 20):  # its frames take about half of the time, the copy of its stack the rest
            step = times * MOST_RUN_NS // ran.calls
            said = process.in_user_space(True)
            said.setting("step", step)
            process.sample(said, tid)
            said.dump("counters")
            (late,), (counters,) = said.run()
            assert counted(counters)[LossReason.OVER_BUDGET] > 0
            assert late.late <= MAX_LATE
            assert late.calls <= MOST_RUN_NS // step + MAX_LATE
            chain = process.chain(late)
            assert chain is not None
            assert late.record.flags[0] & Flag.BROKEN
            frames = frames_of(chain)
            assert 0 < len(frames) < len(frames_of(whole))
            assert frames == frames_of(whole)[: len(frames)]
            copy = late.copies[0]
            assert process.memory.read(int(late.record.base[0]), len(copy)) == copy
