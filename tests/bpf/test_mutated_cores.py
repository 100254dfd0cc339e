"""Tests of the BPF program on core files with random changes in frames, thread states and stacks."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shutil import copytree

import pytest

from pyprof.collectors.bpf.ring_buffer_records import LossReason
from pyprof.interpreters.cpython.bpf_frame_decoder import MAX_ROWS
from pyprof.interpreters.cpython.layout import NONE
from tests.bpf.saved_process import SavedProcess
from tests.bpf.test_on_cores import MAX_CORES, busy, naps, sampled, saved
from tests.bpf.user_space import MOST_RUN_NS, Ran, counted
from tests.interpreters.packages import from_pypi
from tests.interpreters.pythons import KINDS, Python, pythons

pytestmark = [pytest.mark.matrix, pytest.mark.fuzz, pytest.mark.system]

MUTATIONS = 400
MAX_AT_ONCE = 4
MAX_LATE = 2_500
"""Maximum number of helper calls and loop iterations after the time limit, as in test_hostile_memory."""
MIN_WAITING = 3
"""Minimum number of rows of suspended greenlets."""
STEPS = (1, 30, 1_000, 10_000)
ODD = (0, 1, 4, 0xFFFF_FFFF, (1 << 64) - 1, (1 << 63) + 8)


@dataclass(frozen=True)
class Mutant:
    """A core file of one thread whose words a test changes.

    Attributes:
        process: The process in the core file.
        whole: A sample of the unchanged core.
    """

    process: SavedProcess
    whole: Ran

    @cached_property
    def places(self) -> list[list[int]]:
        """Return the addresses of words by kind: frames, CFrames, links to them, the stack, and tasks."""
        runtime, offsets = self.process.offsets
        record = self.whole.record
        frames = [at + word for at in record.frames[:, 0].tolist() for word in range(0, offsets.frame_bytes, 8)]
        cframes = [at + word for at in record.anchors[:, 0].tolist() for word in range(0, 24, 8)]
        (interpreter,) = self.read(runtime + offsets.interpreters_head)
        state = int(record.state[0])
        of_state = (offsets.thread_next, offsets.thread_id, offsets.native_id, offsets.thread_frame, offsets.base_frame)
        leads = [state + (at & ~7) for at in (*of_state, offsets.thread_cframe) if at != NONE]
        leads += [interpreter + offsets.threads_head, interpreter + offsets.interpreter_next]
        sp, stack = self.process.stack(int(record.tid[0]))
        kinds = [frames, cframes, leads, list(range(sp, sp + len(stack) - 7, 8))]
        kinds += [self.tasks(state)]
        return [[at for at in kind if self.read(at)] for kind in kinds if kind]

    def tasks(self, state: int) -> list[int]:
        """Return the addresses of words in the running task, the tasks that await it, and their outermost
        coroutines.
        """
        _, offsets = self.process.offsets
        awaits, found = offsets.awaits, []
        if awaits is None:
            return []
        task = self.read(state + awaits.running_task)
        while task and task[0]:
            found += [task[0] + at for at in (awaits.task_awaited_by, awaits.task_is_set & ~7, awaits.task_coroutine)]
            for coroutine in self.read(task[0] + awaits.task_coroutine):
                frame = coroutine + awaits.coroutine_frame
                found += [coroutine + awaits.object_type, *range(frame, frame + offsets.frame_bytes, 8)]
            task = self.read(task[0] + awaits.task_awaited_by)
        return found

    def read(self, at: int) -> list[int]:
        """Return the word at this address as a list, empty if it cannot be read."""
        data = self.process.memory.read(at, 8)
        return [int.from_bytes(data, "little")] if len(data) == 8 else []

    def value(self, chance: random.Random) -> int:
        """Return a new value for a word: a random number, another word of the core, or an address near one."""
        place = chance.choice(chance.choice(self.places))
        (word,) = self.read(place)
        odd = chance.choice(ODD)
        return chance.choice((odd, word, place, place, place + chance.randrange(-64, 64), chance.getrandbits(64)))

    def run(self, seed: int) -> tuple[list[Ran], dict[LossReason, int]]:
        """Sample the core with several random mutations and then once unchanged."""
        chance = random.Random(seed)
        said = self.process.in_user_space(True)
        tid = int(self.whole.record.tid[0])
        for _ in range(MUTATIONS):
            said.setting("step", chance.choice(STEPS))
            places = {chance.choice(chance.choice(self.places)) & ~7 for _ in range(chance.randint(1, MAX_AT_ONCE))}
            for at in places:
                said.poke(at, self.value(chance))
            self.process.sample(said, tid)
            for at in places:
                said.poke(at, *self.read(at))
        said.setting("step", 1)
        self.process.sample(said, tid)
        said.dump("counters")
        samples, (counters,) = said.run(120)
        return samples, counted(counters)


def check(process: SavedProcess, seed: int) -> None:
    (tid,) = process.tids
    mutant = Mutant(process, sampled(process, True)[tid][0])
    samples, counts = mutant.run(seed)
    *mutated, last = samples
    assert len(mutated) == MUTATIONS == counts[LossReason.SAMPLED] - 1
    for ran in mutated:
        assert ran.late <= MAX_LATE
        assert ran.calls <= MOST_RUN_NS + MAX_LATE
        assert len(ran.record.frames) <= MAX_ROWS
        assert len(ran.copies[0]) == int(ran.record.size[0])
        process.chain(ran)
    whole = mutant.whole.record
    different = sum(ran.record.frames.tolist() != whole.frames.tolist() for ran in mutated)
    assert different > MUTATIONS // 10
    own = len(whole.frames) - int(whole.waiting[0])
    assert last.record.frames[:own].tolist() == whole.frames[:own].tolist()


@KINDS
def test_words_that_lie_cost_frames_and_no_time(python: Python, tmp_path: Path) -> None:
    with saved(python, tmp_path, naps, "ladder.py") as (process, _):
        check(process, python.minor)


@pytest.mark.parametrize("python", [p for p in pythons() if p.minor in (11, 12, 13)], ids=lambda python: python.name)
def test_words_that_lie_on_a_stack_where_greenlets_wait_cost_frames_and_no_time(python: Python, tmp_path: Path) -> None:
    packages = from_pypi(python.minor, "greenlet", "gevent")
    copytree(packages / "greenlet", tmp_path / "greenlet")
    for _ in range(MAX_CORES):
        with saved(python, tmp_path, busy(1), "greenlets.py") as (process, _):
            (ran, _), *_ = sampled(process, True).values()
            if ran.record.waiting[0] > MIN_WAITING:
                check(process, python.minor)
                return
    pytest.fail("nothing waited")


@pytest.mark.parametrize("python", [p for p in pythons() if p.minor >= 14], ids=lambda python: python.name)
def test_words_that_lie_of_tasks_cost_frames_and_no_time(python: Python, tmp_path: Path) -> None:
    with saved(python, tmp_path, naps, "task_graph.py", "deep", "--naps=1") as (process, _):
        check(process, python.minor)
