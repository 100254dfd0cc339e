"""Cache of decoded frame chains, by the rows that gave them.

Equal rows give one chain, in all batches. In a service nearly all chains are new, but most of them differ from an
earlier one only in the innermost frame's instruction. Such chains share a trunk, and one chain of a trunk is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyprof.interpreters.function_numbers import FunctionTable
from pyprof.model.interpreter_state import Chain, FrameRows, SampleState

_MAX_CHAINS = 4096
_INSTR_AT = 16
"""Byte offset of the instruction in a row of FrameRows.frames."""

RowsKey = tuple[bytes, bytes, bytes, bytes, int, bool, bool, int, int, bool]
"""Key of the cache of frame chains: everything that rows say about one thread.

The parts are: frames, flags, bytecode copies, markers on the C stack, SampleState; whether the chain is broken, whether
the rows belong to several interpreters; the number of frames that wait and of frames of awaiting tasks; whether other
evaluator calls may wait.
"""


def row_keys(rows: FrameRows, others: bool) -> list[RowsKey]:
    """Return the cache key of each thread's frame rows.

    Args:
        others: See model.interpreter_state.Chain.
    """
    frames, flag, stands = rows.frames.tobytes(), rows.flag.tobytes(), rows.stands.tobytes()
    tlbc = rows.tlbc.tobytes() if rows.tlbc.any() else b""
    start, stand_start = rows.start.tolist(), rows.stand_start.tolist()
    odd = rows.broken.astype(bool).tolist(), rows.several.tolist()
    states = zip(row_states(rows).tolist(), *odd, rows.waiting.tolist(), rows.awaiting.tolist(), strict=True)
    bounds = zip(start, start[1:], stand_start, stand_start[1:], states, strict=False)
    return [
        (frames[32 * a : 32 * b], flag[a:b], tlbc[4 * a : 4 * b], stands[16 * c : 16 * d], *state, others)
        for a, b, c, d, state in bounds
    ]


def row_states(rows: FrameRows) -> npt.NDArray[np.int64]:
    """Return the SampleState of each thread's copied rows as an int64 array."""
    states = SampleState.INTERPRETED * np.ones(len(rows.holds), np.int64)
    states[rows.holds] |= SampleState.HOLDS_LOCK
    states[rows.holds & rows.collecting] |= SampleState.COLLECTING
    return states


def _trunk(key: RowsKey) -> RowsKey:
    """Return a frame chain's cache key without the innermost row's instruction."""
    frames = key[0]
    return frames[:_INSTR_AT] + frames[_INSTR_AT + 8 :], *key[1:]


class _Known(NamedTuple):
    """A cached frame chain and the numbers of all functions in its frames."""

    chain: Chain
    functions: frozenset[int]


class ChainCache:
    """A cache of the decoded frame chains of one process.

    The FunctionTable (functions of all interpreters) drops the number of a function that no frame used for a long time.
    The chains of such a function are decoded again.
    """

    def __init__(self, book: FunctionTable) -> None:
        self._book = book
        self._chains: dict[RowsKey, _Known] = {}
        self._trunks: dict[RowsKey, _Known] = {}

    def find_chains(
        self,
        keys: list[RowsKey],
        decoded: Callable[[list[int]], list[Chain]],
        at: Callable[[Chain, int], Chain | None],
    ) -> list[Chain]:
        """Return the frame chains of the threads in a batch, by the keys of their rows.

        Args:
            keys: Key of each thread.
            decoded: Decodes the chains of threads, given by index.
            at: Derives the chain of a thread from a chain that differs only in the innermost instruction, or returns
                None if that is not possible.
        """
        found: dict[RowsKey, Chain] = {}
        fresh: dict[RowsKey, int] = {}
        for lane, key in enumerate(keys):
            if key in found or key in fresh:
                continue
            known = self._find(self._chains, key)
            if known is None:
                fresh[key] = lane
            else:
                found[key] = known.chain
        if fresh:
            found |= self._made(fresh, decoded, at)
        return [found[key] for key in keys]

    def _made(
        self,
        fresh: dict[RowsKey, int],
        decoded: Callable[[list[int]], list[Chain]],
        at: Callable[[Chain, int], Chain | None],
    ) -> dict[RowsKey, Chain]:
        """Return the frame chains of keys that are not in the cache.

        Args:
            fresh: Index of one thread for each key.
        """
        trunks = {key: _trunk(key) for key in fresh}
        first = {trunk: key for key, trunk in reversed(trunks.items()) if self._find(self._trunks, trunk) is None}
        made = self._kept([*first.values()], fresh, decoded, trunks)
        alone = []
        for key, trunk in trunks.items():
            if key in made:
                continue
            known = self._trunks.get(trunk)
            chain = at(known.chain, fresh[key]) if known is not None else None
            if known is None or chain is None:
                alone.append(key)
            else:
                made[key] = chain
                _keep(self._chains, key, _Known(chain, known.functions))
        return made | self._kept(alone, fresh, decoded, trunks)

    def _kept(
        self,
        keys: list[RowsKey],
        fresh: dict[RowsKey, int],
        decoded: Callable[[list[int]], list[Chain]],
        trunks: dict[RowsKey, RowsKey],
    ) -> dict[RowsKey, Chain]:
        """Decode frame chains, and put those that have a number into the cache."""
        made = dict(zip(keys, decoded([fresh[key] for key in keys]), strict=True)) if keys else {}
        for key, chain in made.items():
            if chain.number:
                known = _Known(chain, frozenset(place.function for run in chain.runs for place in run.frames))
                _keep(self._chains, key, known)
                if chain.trunk:
                    _keep(self._trunks, trunks[key], known)
        return made

    def _find(self, known: dict[RowsKey, _Known], key: RowsKey) -> _Known | None:
        found = known.get(key)
        return found if found is not None and self._book.has_all_codes(found.functions) else None


def _keep(known: dict[RowsKey, _Known], key: RowsKey, found: _Known) -> None:
    if len(known) >= _MAX_CHAINS:
        known.clear()
    known[key] = found
