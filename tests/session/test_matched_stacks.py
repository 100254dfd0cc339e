"""Tests of merging stacks in passes over a batch, against merging each of them separately."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest

from pyprof.collectors.batch_builder import build_stackless_batch
from pyprof.interpreters.frame_merge import Evaluators, merge_chain
from pyprof.model.address_space import AddressSpace
from pyprof.model.arch.x86 import X86_64
from pyprof.model.interpreter_frames import Chain, FunctionPlace, Run, SampleState
from pyprof.model.sample_batch import SampleBatch, SampleKind
from pyprof.model.stacks import FrameKey, Merge, StackTable
from pyprof.model.unwind_result import StackEnd, Trust, Walk
from pyprof.options import UnwindOptions
from pyprof.problem_counters import Diagnostics
from pyprof.session.pipeline import interpreter_merge
from pyprof.session.pipeline.batch_to_stacks import Interning
from pyprof.session.pipeline.interpreter_merge import ChainMerger
from pyprof.session.session import Session
from tests.replay.batch_log import ReplayCollector
from tests.replay.playing import LOGS, unpacked

Stack = tuple[tuple[FrameKey, ...], int]
ROUNDS = 3


def frames(stacks: StackTable, node: int) -> tuple[FrameKey, ...]:
    found: list[FrameKey] = []
    while node:
        found += stacks.key(node)
        node = stacks.parent[node]
    return tuple(found)


class Played:
    """A replay of the python log with each batch repeated several times.

    Attributes:
        merges: Number of samples that were merged one by one.
        stacks: Stack of each sample.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, in_passes: bool, change: Callable[[Chain], Chain]) -> None:
        self.merges = 0
        self.stacks: list[Stack] = []
        diagnostics = Diagnostics()
        merge = ChainMerger.merge

        def counting(merger: ChainMerger, batch: SampleBatch, walk: object) -> object:
            self.merges += len(batch.chains)
            return merge(merger, batch, walk)  # type: ignore[arg-type]

        with unpacked(LOGS / "python.zip") as files, monkeypatch.context() as patched:
            patched.setattr(ChainMerger, "merge", counting)
            collector = ReplayCollector(str(LOGS / "python.zip"), str(files))
            session = Session(collector, UnwindOptions(), diagnostics)
            interning, tree = session.recorder.interning, StackTable()
            interning.in_passes = in_passes
            for batch in collector.batches():
                live = batch.take_samples(np.flatnonzero(batch.kind < SampleKind.UNCHANGED))
                chains = {lane: change(chain) for lane, chain in live.chains.items()}
                for _ in range(ROUNDS):
                    found = interning.intern(replace(live, chains=chains), tree)
                    states = np.zeros(len(live), np.int32) if found.state is None else found.state
                    pairs = zip(found.node.tolist(), states.tolist(), strict=True)
                    self.stacks += [(frames(tree, node), state) for node, state in pairs]
        self.counts = Counter(diagnostics.counts)


def numbered() -> Callable[[Chain], Chain]:
    numbers: dict[Chain, int] = {}
    return lambda chain: replace(chain, number=numbers.setdefault(chain, len(numbers) + 1))


def with_trunks() -> Callable[[Chain], Chain]:
    """Return a change of chains that alternates between two innermost instructions."""
    numbers: dict[Chain, int] = {}
    turn = count()

    def change(chain: Chain) -> Chain:
        if not chain.runs or not chain.runs[0].frames:
            return chain
        trunk = numbers.setdefault(chain.at(0, 0), len(numbers) + 1)
        return replace(chain, trunk=trunk).at(chain.innermost.instruction + next(turn) % 2, 1 << 20)

    return lambda chain: change(replace(chain, number=0))


def without_marks() -> Callable[[Chain], Chain]:
    """Return a change of chains that removes the mark of every other chain's innermost run."""
    turn = count()

    def change(chain: Chain) -> Chain:
        if not chain.runs or next(turn) % 2:
            return chain
        return replace(chain, runs=(Run(0, chain.runs[0].frames), *chain.runs[1:]))

    return change


def low_marks() -> Callable[[Chain], Chain]:
    """Return a change of chains that adds a mark below the innermost frame after the other marks."""
    return lambda chain: replace(chain, runs=(*chain.runs, Run(16, ()))) if chain.runs else chain


CHANGES = {
    "as they are": lambda: lambda chain: chain,
    "numbered": numbered,
    "with trunks": with_trunks,
    "unmarked": without_marks,
    "low": low_marks,
}


@pytest.mark.parametrize("change", CHANGES)
def test_stacks_joined_in_passes_are_those_that_merging_gives(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    merging = Played(monkeypatch, False, CHANGES[change]())
    joining = Played(monkeypatch, True, CHANGES[change]())
    assert joining.stacks == merging.stacks
    assert joining.counts == merging.counts
    interpreted = sum(state & SampleState.INTERPRETED for _, state in merging.stacks)
    assert merging.merges == interpreted > 200
    if change != "low":
        assert joining.merges < 0.7 * merging.merges


EVALUATOR, EVALUATORS_COLD_PART, OTHER = 0x1000, 0x2000, 0x3000
"""Addresses of functions of 256 bytes."""
SPACE = AddressSpace(1, 1, 0, (), lambda avma, size: b"", "")


class Fixed(Evaluators):
    """A set of evaluators that counts what it should learn, by function, and never changes."""

    def __init__(self, *known: int) -> None:
        super().__init__(lambda pc, exact: ((at := (pc if exact else pc - 1) & ~0xFF), at + 0x100))
        self.told: Counter[int] = Counter()
        for function in known:
            super().learn_function(function, True)

    def learn_function(self, pc: int, exact: bool, weight: int = 1) -> None:
        self.told[(pc if exact else pc - 1) & ~0xFF] += weight

    def learn_symbols(self, pcs: tuple[int, ...]) -> None:
        """Ignore symbols, which are known."""


class Made:
    """Random walks of a few functions with chains that fit some of them. It has the interface of walker and merger."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.known = Fixed()
        self._trunks: dict[Chain, int] = {}
        self.walks: list[Walk] = []
        self.merges = 0

    def walk(self, batch: SampleBatch) -> Walk:
        return self.walks[-1]

    def complete(self, batch: SampleBatch, walk: Walk) -> Walk:
        return walk

    def evaluators(self, batch: SampleBatch) -> dict[int, Evaluators]:
        return {SPACE.id: self.known}

    def settled(self, place: FunctionPlace) -> FunctionPlace:
        return FunctionPlace(place.function, place.instruction & ~1)

    def forget(self, space_id: int) -> None:
        """Keep no state of an address space."""

    def merge(self, batch: SampleBatch, walk: Walk) -> tuple[dict[int, Merge], npt.NDArray[np.int32]]:
        merged, states = {}, np.zeros(len(batch), np.int32)
        for lane, chain in batch.chains.items():
            part = slice(int(walk.start[lane]), int(walk.start[lane + 1]))
            pc, sp, exact = walk.pc[part].tolist(), walk.sp[part].tolist(), walk.exact[part].tolist()
            found = merge_chain(pc, sp, exact, StackEnd(walk.end[lane]), chain, self.known)
            merged[lane] = tuple((at, tuple(map(self.settled, each))) for at, each in found.inserts), found.mark
            states[lane] = chain.state | found.reasons
        self.merges += len(batch.chains)
        return merged, states

    def batch(self) -> SampleBatch:
        """Return a random batch, and store its walk."""
        lanes = [self._lane() for _ in range(self._random.randrange(1, 12))]
        n = len(lanes)
        pcs, sps = [pc for lane in lanes for pc in lane[0]], [sp for lane in lanes for sp in lane[1]]
        start = np.cumsum([0, *(len(lane[0]) for lane in lanes)])
        exact = np.zeros(len(pcs), np.bool_)
        exact[start[:-1]] = [self._random.random() < 0.9 for _ in lanes]
        ends = np.array([self._random.choice((StackEnd.ROOT,) * 8 + (StackEnd.STUCK,)) for _ in lanes], np.uint8)
        zeros, none = np.zeros(n, np.uint64), np.zeros(n, np.bool_)
        trust = np.full(len(pcs), Trust.EH_FRAME, np.uint8)
        columns = np.array(pcs, np.uint64), exact, trust, np.array(sps, np.uint64)
        self.walks.append(Walk(start, *columns, ends, zeros, zeros, none))
        ids = np.ones(n, np.int64)
        plain = build_stackless_batch(X86_64, 1, np.zeros(n, np.uint8), ids, ids, ids)
        chains = {at: lane[2] for at, lane in enumerate(lanes) if lane[2] is not None}
        return replace(plain, space=np.full(n, SPACE.id, np.int32), spaces={SPACE.id: SPACE}, chains=chains)

    def _lane(self) -> tuple[list[int], list[int], Chain | None]:
        pick = self._random.choice
        count = pick((1, 2, 2, 3))
        pcs = [pick((EVALUATOR, EVALUATOR, EVALUATORS_COLD_PART, OTHER)) + pick((0x10, 0x20)) for _ in range(count)]
        sps = [pick((0x100, 0x100, 0x100, 0x140)) + 0x100 * n for n in range(count)]
        if pick((0,) * 19 + (1,)):
            sps[0] += 0x300
        fitting = [sp + 0x10 for pc, sp in zip(pcs, sps, strict=True) if pc < OTHER and pick((0,) * 9 + (1,)) == 0]
        marks = fitting if pick((0,) * 9 + (1,)) == 0 else [pick((0x10, 0x130, 0x150, 0x250, 0x350, 0x450, 0))]
        runs = tuple(Run(mark, (FunctionPlace(1),) * pick((1, 1, 1, 2))) for mark in marks)
        if pick((0,) * 19 + (1,)):
            runs = runs[::-1]
        known = EVALUATOR + 8, *((EVALUATORS_COLD_PART + 8,) if pick((0,) * 299 + (1,)) else ())
        chain = Chain(runs, SampleState.INTERPRETED, "", known, True)
        if runs and runs[0].marker % 0x40:
            trunk = self._trunks.setdefault(chain, len(self._trunks) + 1)
            chain = replace(chain, trunk=trunk).at(pick(range(6)), 0)
        return pcs, sps, pick((chain, chain, chain, None))


@pytest.mark.parametrize(("seed", "short"), [(0, 2048), (1, 2048), (2, 0), (3, 0), (4, 16)])
def test_made_stacks_are_those_that_merging_gives(monkeypatch: pytest.MonkeyPatch, seed: int, short: int) -> None:
    """Compare both ways of merging for random stacks.

    Args:
        monkeypatch: The fixture.
        seed: Seed of the random stacks.
        short: Maximum size in bytes of frames that are stored themselves. Of longer ones a digest is stored.
    """
    monkeypatch.setattr(interpreter_merge, "_SHORT", short)
    merging, joining = Made(seed), Made(seed)
    trees = StackTable(), StackTable()
    pairs = [
        (made, Interning(made, None, made, in_passes), tree)
        for made, in_passes, tree in zip((merging, joining), (False, True), trees, strict=True)
    ]
    told: list[Counter[int]] = [Counter(), Counter()]
    for turn in range(150):
        both = []
        for nth, (made, interning, tree) in enumerate(pairs):
            made.known = Fixed(EVALUATOR, *(EVALUATORS_COLD_PART,) * (turn % 3 > 0))
            found = interning.intern(made.batch(), tree)
            states = [0] * len(found.node) if found.state is None else found.state.tolist()
            both.append([(frames(tree, node), state) for node, state in zip(found.node.tolist(), states, strict=True)])
            told[nth].update(made.known.told)
        assert both[0] == both[1]
    assert told[0].keys() == told[1].keys()
    assert all(told[0][function] >= told[1][function] > 0 for function in (EVALUATOR, EVALUATORS_COLD_PART))
    assert len(trees[0]) == len(trees[1])
    assert joining.merges < 0.9 * merging.merges
